"""Do counts come from a distribution? G-tests, with what they could have seen.

Cells that expect fewer than ``LEAST`` counts are pooled, so that the statistic has its limiting distribution; it is
divided by Williams' correction (1976), which is exact to the order 1/n.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log, sqrt
from typing import Any

LEAST = 5.0
POWER = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One comparison of counts with a distribution, or with other counts."""

    samples: int
    cells: int
    """After pooling."""
    statistic: float
    """G after the correction; infinite where something impossible was counted."""
    total_variation: float
    """Between the two over the cells. It is not 0 for equal distributions: counts scatter."""
    effective: float
    """Samples that a test against a known distribution would need for the same power."""

    @property
    def freedom(self) -> int:
        return self.cells - 1

    @property
    def p_value(self) -> float:
        """Chance of a statistic at least as large if both are equal; 1 where one cell leaves nothing to test."""
        from scipy.stats import chi2

        if self.statistic == inf:
            return 0.0
        return float(chi2.sf(self.statistic, self.freedom)) if self.freedom else 1.0

    def detectable(self, significance: float) -> float | None:
        """A total variation over the cells that is rejected with probability ``POWER`` at least, at this level.

        A distance d in total variation has a chi-square distance of 4 d^2 at least. None: there is nothing to test.
        """
        from scipy.optimize import brentq
        from scipy.stats import chi2, ncx2

        if not self.freedom:
            return None
        limit = chi2.isf(significance, self.freedom)
        shift = brentq(lambda x: ncx2.sf(limit, self.freedom, x) - POWER, 1e-9, 1e7)
        return min(sqrt(shift / (4.0 * self.effective)), 1.0)


def row_of(name: str, fit: Fit, level: float) -> dict[str, Any]:
    """A comparison as the record and the report show it; ``level``: p-values below it are rejected."""
    return {
        "setting": name,
        "samples": fit.samples,
        "cells": fit.cells,
        "g": fit.statistic if fit.p_value else None,
        "p_value": fit.p_value,
        "total_variation": fit.total_variation,
        "detectable": fit.detectable(level),
        "power": POWER,
    }


def together(fits: Sequence[Fit]) -> Fit:
    """Independent comparisons as one, which sees what is small in each."""
    return Fit(
        samples=sum(fit.samples for fit in fits),
        cells=1 + sum(fit.freedom for fit in fits),
        statistic=sum(fit.statistic for fit in fits),
        total_variation=max((fit.total_variation for fit in fits), default=0.0),
        effective=sum(fit.effective for fit in fits),
    )


def against_distribution(counts: Mapping[Any, int], expected: Mapping[Any, float]) -> Fit:
    """``expected``: probability of everything that can happen."""
    n = sum(counts.values())
    cells = _pooled({key: p * n for key, p in expected.items()})
    observed = [sum(counts.get(key, 0) for key in cell) for cell in cells]
    shares = [sum(expected[key] for key in cell) for cell in cells]
    impossible = n - sum(observed)
    g = 2.0 * sum(o * log(o / (n * p)) for o, p in zip(observed, shares, strict=True) if o)
    return Fit(
        samples=n,
        cells=len(cells),
        statistic=inf if impossible else max(g, 0.0) / _correction(n, shares),
        total_variation=(sum(abs(o / n - p) for o, p in zip(observed, shares, strict=True)) + impossible / n) / 2,
        effective=n,
    )


def of_two(first: Mapping[Any, int], second: Mapping[Any, int]) -> Fit:
    """Two independent samples of the same size, neither of a known distribution."""
    n, m = sum(first.values()), sum(second.values())
    both = Counter(first) + Counter(second)
    cells = _pooled({key: min(n, m) / (n + m) * count for key, count in both.items()})
    g, distance = 0.0, 0.0
    for cell in cells:
        a, b = (sum(side.get(key, 0) for key in cell) for side in (first, second))
        for count, size in ((a, n), (b, m)):
            g += 2.0 * count * log(count * (n + m) / (size * (a + b))) if count else 0.0
        distance += abs(a / n - b / m) / 2
    shares = [sum(both[key] for key in cell) / (n + m) for cell in cells]
    effective = n * m / (n + m)
    return Fit(
        samples=n + m,
        cells=len(cells),
        statistic=max(g, 0.0) / _correction(effective, shares),
        total_variation=distance,
        effective=effective,
    )


def _pooled(expected: Mapping[Any, float]) -> list[list[Hashable]]:
    """Keys by cell: the frequent ones alone, the others in one cell, which takes the rarest frequent one if it must."""
    ranked = sorted((key for key, count in expected.items() if count > 0), key=lambda key: (-expected[key], repr(key)))
    cells: list[list[Hashable]] = [[key] for key in ranked if expected[key] >= LEAST]
    rare = ranked[len(cells) :]
    if not rare:
        return cells
    if cells and sum(expected[key] for key in rare) < LEAST:
        cells[-1] += rare
    else:
        cells.append(list(rare))
    return cells


def _correction(n: float, shares: Sequence[float]) -> float:
    """Williams' q."""
    cells = len(shares)
    return 1.0 + (sum(1.0 / p for p in shares) - 1.0) / (6.0 * n * (cells - 1)) if cells > 1 else 1.0
