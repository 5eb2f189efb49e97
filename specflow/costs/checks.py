"""Whether measured costs are worth a table: quiet enough, not flat, growing with rows up to noise (pitfall 27)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from scipy.optimize import isotonic_regression

from specflow.costs.cells import Cell
from specflow.costs.tables import AdditiveTable, RowTable

QUIET = 0.1
"""Largest noise of a cell, as a share of its median, in half of the cells."""
ABOVE_NOISE = 5.0
"""The spread of a table over its noise; less, and the scheduler would act on chance."""
FALL = 0.1
"""Largest fall of the cost with more rows, as a share, beyond the noise."""


FLAT = 0.02
"""Least spread of costs with which a scheduler has anything to decide."""


class CostError(ValueError):
    """Measurements that make no table; ``problems`` says every reason."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def noise_of(cells: Sequence[Cell]) -> float:
    """Noise of the median cell, as a share."""
    return float(np.median([cell.noise for cell in cells]))


def spread_of(cells: Sequence[Cell]) -> float:
    """How much dearer the dearest cell is than the cheapest, as a share."""
    found = [cell.median for cell in cells]
    return max(found) / min(found) - 1.0


def table_spread(table: RowTable | AdditiveTable) -> float:
    """How much dearer most rows are than fewest, as a share; the same number of requests."""
    requests = table.requests[0] if isinstance(table, AdditiveTable) else 1
    few, most = (float(table.seconds(requests, rows)) for rows in (table.rows[0], table.rows[-1]))
    return most / few - 1.0


def check_cells(cells: Sequence[Cell]) -> None:
    """Raises ``CostError`` with everything that is wrong."""
    problems = []
    if len({cell.rows for cell in cells}) < 2:
        raise CostError(["one number of rows was measured: expected at least 2, or the table is flat"])
    noise, spread = noise_of(cells), spread_of(cells)
    if noise > QUIET:
        problems.append(
            f"the median of a cell is uncertain by {noise:.0%} (half of the cells by more): expected at most "
            f"{QUIET:.0%}; measure while nothing else runs, or with more samples"
        )
    if spread <= ABOVE_NOISE * noise or spread < FLAT:
        problems.append(
            f"the dearest pass costs {spread:.1%} more than the cheapest, at a noise of {noise:.1%}: a flat table, "
            "with which a scheduler verifies everything; measure more rows or requests"
        )
    problems += [problem for problem in map(_fall, _lines(cells)) if problem]
    if problems:
        raise CostError(problems)


def _lines(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Uniform cells of the same number of requests, by rows."""
    uniform = sorted((c for c in cells if c.uniform), key=lambda c: (c.requests, c.rows))
    return [list(group) for _, group in groupby(uniform, key=lambda c: c.requests)]


def _fall(line: Sequence[Cell]) -> str | None:
    """Where the cost falls with rows by more than noise explains; none where it does not."""
    fitted = isotonic_regression([cell.median for cell in line]).x
    for cell, level in zip(line, fitted, strict=True):
        miss = abs(cell.median / level - 1.0)
        if miss > FALL + 4.0 * cell.noise:
            return (
                f"{cell.requests} requests: the cost does not grow with rows ({cell.rows} rows are {miss:.0%} off any "
                "growing curve): something else ran meanwhile, measure again"
            )
    return None
