"""Timed passes: one cell per number of requests and split of rows, with all its samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Passes of the same shape. ``split``: target rows of each request."""

    split: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def requests(self) -> int:
        return len(self.split)

    @property
    def rows(self) -> int:
        return sum(self.split)

    @property
    def uniform(self) -> bool:
        return len(set(self.split)) == 1

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def noise(self) -> float:
        """Standard error of the median, as a share of it."""
        deviation = NORMAL_MAD * float(np.median(np.abs(np.asarray(self.seconds) - self.median)))
        return MEDIAN_ERROR * deviation / math.sqrt(len(self.seconds)) / self.median

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "rows": self.rows,
            "split": list(self.split),
            "median_seconds": self.median,
            "noise": self.noise,
            "seconds": list(self.seconds),
        }


def cell_of(data: dict[str, Any]) -> Cell:
    return Cell(split=tuple(int(n) for n in data["split"]), seconds=tuple(float(s) for s in data["seconds"]))


def uneven_splits(requests: int, rows: int, *, most: int) -> list[tuple[int, ...]]:
    """Ways to give ``rows`` rows to ``requests`` requests, 1 to ``most`` each: as even as can be, and as uneven.

    Raises ``ValueError`` where there is none.
    """
    if not requests <= rows <= requests * most:
        raise ValueError(f"{rows} rows for {requests} requests of 1 to {most} rows each")
    share, rest = divmod(rows, requests)
    even = (*[share + 1] * rest, *[share] * (requests - rest))
    uneven: list[int] = []
    left = rows
    for waiting in range(requests - 1, -1, -1):
        uneven.append(min(most, left - waiting))
        left -= uneven[-1]
    return list(dict.fromkeys([even, tuple(uneven)]))


def medians(cells: Sequence[Cell]) -> dict[tuple[int, int], float]:
    """Median seconds by requests and rows, over the samples of all cells that agree in both."""
    samples: dict[tuple[int, int], list[float]] = {}
    for cell in cells:
        samples.setdefault((cell.requests, cell.rows), []).extend(cell.seconds)
    return {key: float(np.median(values)) for key, values in sorted(samples.items())}
