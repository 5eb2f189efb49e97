"""From timed passes to cost tables: monotone in rows and requests, by SciPy's isotonic and non-negative fits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import isotonic_regression, nnls

from specflow.costs.cells import Cell, medians
from specflow.costs.tables import AdditiveTable, Floats, RowTable


def fit_rows(cells: Sequence[Cell], *, max_rows: int | None = None) -> RowTable:
    """Seconds that never fall with rows, as near as can be to the medians; each number of rows counts alike."""
    by_rows: dict[int, list[float]] = {}
    for (_, rows), seconds in medians(cells).items():
        by_rows.setdefault(rows, []).append(seconds)
    probes = sorted(by_rows)
    fitted = isotonic_regression([float(np.median(by_rows[rows])) for rows in probes]).x
    return RowTable(
        rows=tuple(probes),
        rounds_per_second=tuple(float(1.0 / seconds) for seconds in fitted),
        max_rows=max(max_rows or 0, probes[-1]),
    )


def fit_additive(cells: Sequence[Cell]) -> AdditiveTable:
    """``bias + alpha(requests) + theta(rows)``, both never falling, least squares of relative errors.

    alpha and theta are sums of steps of at least 0, one between two probes; each is 0 at its first probe.
    Raises ``ValueError`` where requests and rows cannot be told apart: one number of rows per request, or one of
    requests.
    """
    found = medians(cells)
    requests = sorted({r for r, _ in found})
    rows = sorted({m for _, m in found})
    design = np.array(
        [[1.0, *(r >= probe for probe in requests[1:]), *(m >= probe for probe in rows[1:])] for r, m in found],
        dtype=np.float64,
    )
    per_request = {m / r for r, m in found}
    if len(per_request) < 2 or len(requests) < 2:
        raise ValueError(
            f"{len(requests)} numbers of requests and {len(per_request)} of rows per request: expected at least 2 of "
            "each, or the cost of a request cannot be told from that of a row"
        )
    seconds = np.array(list(found.values()))
    steps, _ = nnls(design / seconds[:, None], np.ones(len(seconds)))
    alpha, theta = steps[1 : len(requests)], steps[len(requests) :]
    return AdditiveTable(
        bias_seconds=max(float(steps[0]), 1e-9),
        requests=tuple(requests),
        alpha_seconds=_sums(alpha),
        rows=tuple(rows),
        theta_seconds=_sums(theta),
    )


def _sums(steps: Floats) -> tuple[float, ...]:
    return (0.0, *(float(total) for total in np.cumsum(steps)))


def misses(table: RowTable | AdditiveTable, cells: Sequence[Cell]) -> Floats:
    """Per cell, predicted over measured seconds, less 1."""
    return np.array([float(table.seconds(c.requests, c.rows)) / c.median - 1.0 for c in cells])
