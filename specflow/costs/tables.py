"""Cost tables: rounds per second by target rows, or seconds by requests and rows (METHODS 6.2).

Both answer ``seconds(requests, rows)`` as SGLang does: the first by the last probe that is not above, the second by
straight lines between probes; beyond the outermost probes a table stays level (see ``specflow.costs.beyond``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


class CostTable(Protocol):
    def seconds(self, requests: int, rows: ArrayLike) -> Floats:
        """Seconds of a round of ``requests`` requests with each of ``rows`` target rows in all; the shape of rows."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTable:
    """Rounds per second by rows of a pass, whatever the number of requests. Raises ``ValueError`` if malformed."""

    rows: tuple[int, ...]
    rounds_per_second: tuple[float, ...]
    max_rows: int

    def __post_init__(self) -> None:
        problems = list(_probe_problems("rows", self.rows, self.rounds_per_second))
        if any(not value > 0 for value in self.rounds_per_second):
            problems.append("rounds_per_second: expected positive numbers")
        if self.rows and self.max_rows < self.rows[-1]:
            problems.append(f"max_rows: {self.max_rows} is below the last probe, {self.rows[-1]}")
        _refuse(problems)

    def seconds(self, requests: int, rows: ArrayLike) -> Floats:
        place = np.searchsorted(self.rows, np.asarray(rows), side="right") - 1
        return 1.0 / np.asarray(self.rounds_per_second)[np.clip(place, 0, len(self.rows) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditiveTable:
    """``bias + alpha(requests) + theta(rows)`` seconds. Raises ``ValueError`` if malformed."""

    bias_seconds: float
    requests: tuple[int, ...]
    alpha_seconds: tuple[float, ...]
    rows: tuple[int, ...]
    theta_seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        problems = [
            *_probe_problems("requests", self.requests, self.alpha_seconds),
            *_probe_problems("rows", self.rows, self.theta_seconds),
        ]
        if not self.bias_seconds > 0:
            problems.append(f"bias_seconds: expected more than 0, found {self.bias_seconds}")
        _refuse(problems)

    def seconds(self, requests: int, rows: ArrayLike) -> Floats:
        alpha = np.interp(float(requests), self.requests, self.alpha_seconds)
        theta: Floats = np.interp(np.asarray(rows, dtype=np.float64), self.rows, self.theta_seconds)
        return self.bias_seconds + alpha + theta


def with_overhead(table: AdditiveTable, seconds_per_request: float) -> AdditiveTable:
    """The same with ``seconds_per_request`` more for every request: drafting one after the other, bookkeeping."""
    first = table.requests[0]
    further = [a + seconds_per_request * (r - first) for a, r in zip(table.alpha_seconds, table.requests, strict=True)]
    return AdditiveTable(
        bias_seconds=table.bias_seconds + seconds_per_request * first,
        requests=table.requests,
        alpha_seconds=tuple(further),
        rows=table.rows,
        theta_seconds=table.theta_seconds,
    )


def _probe_problems(name: str, probes: Sequence[int], values: Sequence[float]) -> list[str]:
    problems = []
    if not probes:
        problems.append(f"{name}: no probes, expected at least one")
    if list(probes) != sorted(set(probes)) or any(probe < 1 for probe in probes):
        problems.append(f"{name}: expected increasing whole numbers from 1, found {list(probes)}")
    if len(probes) != len(values):
        problems.append(f"{name}: {len(probes)} probes and {len(values)} values")
    if not np.isfinite(values).all():
        problems.append(f"{name}: values that are not finite")
    return problems


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise ValueError("not a cost table: " + "; ".join(problems))
