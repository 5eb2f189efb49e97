"""Short measurements on this machine that choose the number of threads and the precision."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from specflow_kernels.packed_linear import packed_linear_supported

from specflow.data.processes import usable_cores
from specflow.targets.linear import PackingReport, packed_product

ROWS = (1, 6, 64)
"""Decoding, verification, prefill."""
ATTEMPTS, PAUSE_SECONDS = 3, 2.0
COLD_BYTES, MOST_LAYERS, TURNS = 32 << 20, 10, 4
"""fp32 weights that a small processor's cache does not hold, and how often each form of them is timed."""


def best_seconds(run: Callable[[], object], *, repeats: int = 7) -> float:
    run()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def choose_threads() -> int:
    """1 or all cores, whichever runs a product of prefill size quicker now.

    A second thread beside another busy process waits at every barrier and can be many times slower
    than one thread, so the median counts, not the best. A neighbour that is only starting (the
    workflow's own server, say) must not decide for a whole stage: a "no" is asked again after a pause.
    """
    cores = torch.get_num_threads() if torch.get_num_threads() > 1 else usable_cores()
    if cores == 1:
        return 1
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_SECONDS)
        one, all_cores = _median_seconds(1), _median_seconds(cores)
        if all_cores < 0.9 * one:
            return cores
    return 1


def _median_seconds(threads: int, *, samples: int = 15) -> float:
    before = torch.get_num_threads()
    weight, x = torch.ones(2048, 1024), torch.ones(ROWS[-1], 1024)
    try:
        torch.set_num_threads(threads)
        return sorted(best_seconds(partial(F.linear, x, weight), repeats=1) for _ in range(samples))[samples // 2]
    finally:
        torch.set_num_threads(before)


def choose_precision(hidden: int, intermediate: int) -> str:
    """The quickest of ``fp32``, ``bf16`` and ``packed`` for layers of this size, over ``ROWS``.

    As many layers are run in turn as do not fit a processor's cache: a model's weights come from memory, and what
    counts for few rows is how many bytes that is. The forms take turns, so that a passing disturbance hits all.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(intermediate, hidden, generator=generator) * 0.02
    layers = range(min(MOST_LAYERS, max(2, COLD_BYTES // (weight.numel() * weight.element_size()))))
    wide, narrow = [weight.clone() for _ in layers], [weight.bfloat16() for _ in layers]
    runs: dict[str, Callable[[torch.Tensor], object]] = {
        "fp32": lambda x: [F.linear(x, w) for w in wide[: _layers(x)]],
        "bf16": lambda x: [F.linear(x.bfloat16(), w) for w in narrow[: _layers(x)]],
    }
    if packed_linear_supported():
        packed = [packed_product(weight, None, PackingReport(), name="probe") for _ in layers]
        runs["packed"] = lambda x: [product(x) for product in packed[: _layers(x)]]
    cost = dict.fromkeys(runs, 1.0)
    for rows in ROWS:
        x = torch.randn(rows, hidden, generator=generator)
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(TURNS):
            for name, run in runs.items():
                best[name] = min(best[name], best_seconds(partial(run, x), repeats=1))
        cost = {name: cost[name] * best[name] for name in runs}
    return min(cost, key=lambda name: cost[name])


def _layers(x: torch.Tensor) -> int:
    """Many rows use a weight often enough that where it comes from does not matter."""
    return MOST_LAYERS if x.shape[0] < ROWS[-1] else 1
