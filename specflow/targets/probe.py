"""Short measurements on this machine that choose the number of threads and the precision."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from specflow_kernels.packed_linear import packed_linear_supported

from specflow.targets.linear import PackingReport, packed_product

ROWS = (1, 6, 64)
"""Decoding, verification, prefill."""
ATTEMPTS, PAUSE_SECONDS = 3, 2.0


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
    cores = torch.get_num_threads() if torch.get_num_threads() > 1 else _cores()
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


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def choose_precision(hidden: int, intermediate: int) -> str:
    """The quickest of ``fp32``, ``bf16`` and ``packed`` for one layer of this size, over ``ROWS``."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(intermediate, hidden, generator=generator) * 0.02
    weight_bf16 = weight.bfloat16()
    packed = packed_product(weight, None, PackingReport(), name="probe") if packed_linear_supported() else None
    cost: dict[str, float] = {"fp32": 1.0, "bf16": 1.0}
    for rows in ROWS:
        x = torch.randn(rows, hidden, generator=generator)
        x_bf16 = x.bfloat16()
        cost["fp32"] *= best_seconds(partial(F.linear, x, weight))
        cost["bf16"] *= best_seconds(partial(F.linear, x_bf16, weight_bf16))
        if packed is not None:
            cost["packed"] = cost.get("packed", 1.0) * best_seconds(partial(packed, x))
    return min(cost, key=lambda name: cost[name])
