"""Means with intervals, and percentiles, from what single requests took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specflow.config.load_result import Spread
from specflow.reporting.measure import BOOTSTRAP_SAMPLES

Floats = NDArray[np.float64]


def ratio_interval(sums_PC: Floats, ratio: Any, *, seed: int) -> tuple[float | None, float | None]:
    """95 % interval of ``ratio(sums)`` over resamples of prompts; ``sums_PC``: sums of each prompt, by column.

    Answers to the same prompt are alike, so whole prompts are drawn. None with fewer than two, and where it is not
    defined in a resample.
    """
    if len(sums_PC) < 2:
        return None, None
    drawn = np.random.default_rng(seed).integers(0, len(sums_PC), size=(BOOTSTRAP_SAMPLES, len(sums_PC)))
    with np.errstate(divide="ignore", invalid="ignore"):
        values = ratio(sums_PC[drawn].sum(1))
    values = values[np.isfinite(values)]
    if not len(values):
        return None, None
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def by_prompt(rows: Iterable[tuple[str, Sequence[float]]]) -> Floats:
    """``[prompts, columns]`` sums of the rows of each id, ids in the order of their first row."""
    sums: dict[str, Floats] = {}
    for name, row in rows:
        sums[name] = sums.get(name, 0.0) + np.asarray(row, dtype=np.float64)
    return np.array(list(sums.values()), dtype=np.float64)


def first_over_second(sums: Floats) -> Any:
    return sums[..., 0] / sums[..., 1]


def spread(rows: Sequence[tuple[str, float, float]], *, seed: int) -> Spread | None:
    """``rows``: id, seconds, and how many things took so long together; none without any.

    The mean is seconds over things. Percentiles are of the seconds of single things, each as often as it occurs.
    """
    values = np.array([seconds / things for _, seconds, things in rows], dtype=np.float64)
    weights = np.array([things for _, _, things in rows], dtype=np.float64)
    if not len(values):
        return None
    sums = by_prompt((name, (seconds, things)) for name, seconds, things in rows)
    low, high = ratio_interval(sums, first_over_second, seed=seed)
    p50, p90, p99 = (weighted_percentile(values, weights, q) for q in (50, 90, 99))
    mean = float(first_over_second(sums.sum(0)))
    return Spread(mean=mean, low=low, high=high, p50=p50, p90=p90, p99=p99, worst=float(values.max()))


def weighted_percentile(values: Floats, weights: Floats, q: float) -> float:
    """The smallest value that at least ``q`` % of the weight does not exceed."""
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    place = int(np.searchsorted(total, q / 100 * total[-1] * (1 - 1e-12)))
    return float(values[order][min(place, len(values) - 1)])
