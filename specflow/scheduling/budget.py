"""How many positions to verify over all requests, decided on the host from confidence of earlier rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specflow.costs.tables import CostTable
from specflow.scheduling.limits import SURVIVAL_FLOOR

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    positions: int
    """K, proposals verified over all requests; the anchors' rows come on top."""
    tokens_per_second: float
    """Expected with it."""
    seconds: float
    """Expected of the round."""


def host_budget(survival_RM: Floats, cost: CostTable) -> Budget:
    """First K with the most expected tokens per second, ``(R + sum of the K best survivals) / seconds(R, R + K)``."""
    return pooled_budget(survival_RM[None], len(survival_RM), cost)


def pooled_budget(samples_WRM: Floats, requests: int, cost: CostTable) -> Budget:
    """The same for tokens on average over W rounds, each with its own K best.

    ``requests``: of the round, those that draft nothing included. One round of few requests says little of the next:
    a budget on it alone is too small as often as it is too large, and too small costs more.
    """
    alive_WK = np.where(samples_WRM >= SURVIVAL_FLOOR, samples_WRM, 0.0).reshape(len(samples_WRM), -1)
    found, seconds = throughput(np.sort(alive_WK, axis=1)[:, ::-1].mean(axis=0), requests, cost)
    best = int(found.argmax())
    return Budget(positions=best, tokens_per_second=float(found[best]), seconds=float(seconds[best]))


def throughput(ordered_K: Floats, requests: int, cost: CostTable) -> tuple[Floats, Floats]:
    """Expected tokens per second, and seconds, with the first 0, 1, ... K of ``ordered_K`` verified."""
    tokens = requests + np.concatenate(([0.0], np.cumsum(ordered_K)))
    seconds = cost.seconds(requests, requests + np.arange(len(tokens)))
    return tokens / seconds, seconds
