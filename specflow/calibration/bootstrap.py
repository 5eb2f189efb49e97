"""How far a temperature would move with other requests: the same choice on requests drawn with replacement."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit

from specflow.calibration.measures import MARGIN, Bools, Floats, bin_of

AT_A_TIME = 32
"""Draws in one product, which bounds memory."""


def temperature_interval(
    logits_N: Floats,
    accepted_N: Bools,
    before_N: Floats,
    request_N: NDArray[np.int64],
    *,
    grid: Floats,
    choose: Callable[[Floats], int],
    draws: int,
    seed: tuple[int, ...],
    bins: int,
) -> tuple[float, float]:
    """95 % interval of ``grid[choose(errors)]`` over ``draws`` resamples of whole requests.

    ``before_N``: survival up to the position before. The sums of each bin are linear in how often a request is drawn,
    so they are formed once per request and multiplied by the draws.
    """
    requests, group_N = np.unique(request_N, return_inverse=True)
    sums = _bin_sums(logits_N, accepted_N, before_N, group_N, len(requests), grid=grid, bins=bins)
    sizes = np.bincount(group_N, minlength=len(requests)).astype(np.float64)
    random = np.random.default_rng(seed)
    chosen: list[float] = []
    for start in range(0, draws, AT_A_TIME):
        count = min(AT_A_TIME, draws - start)
        drawn = random.integers(len(requests), size=(count, len(requests)))
        times = np.stack([np.bincount(row, minlength=len(requests)) for row in drawn], axis=1).astype(np.float64)
        errors = np.abs((sums @ times).reshape(len(grid), bins, count)).sum(axis=1) / (sizes @ times)
        chosen += [float(grid[choose(errors[:, d])]) for d in range(count)]
    low, high = np.quantile(chosen, (0.025, 0.975), method="nearest")
    return float(low), float(high)


def _bin_sums(
    logits_N: Floats,
    accepted_N: Bools,
    before_N: Floats,
    group_N: NDArray[np.intp],
    groups: int,
    *,
    grid: Floats,
    bins: int,
) -> sparse.csr_array:
    """``[grid * bins, groups]`` sums of probability less outcome."""
    rows, values = [], []
    for number, temperature in enumerate(grid):
        survival_N = before_N * expit(logits_N / temperature)
        rows.append(number * bins + bin_of(survival_N, bins=bins))
        values.append(np.clip(survival_N, MARGIN, 1 - MARGIN) - accepted_N)
    columns = np.tile(group_N, len(grid))
    shape = (len(grid) * bins, groups)
    return sparse.csr_array(sparse.coo_array((np.concatenate(values), (np.concatenate(rows), columns)), shape=shape))
