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
    requests = len(survival_RM)
    found, seconds = throughput(np.sort(_alive(survival_RM))[::-1], requests, cost)
    best = int(found.argmax())
    return Budget(positions=best, tokens_per_second=float(found[best]), seconds=float(seconds[best]))


def throughput(ordered_K: Floats, requests: int, cost: CostTable) -> tuple[Floats, Floats]:
    """Expected tokens per second, and seconds, with the first 0, 1, ... K of ``ordered_K`` verified."""
    tokens = requests + np.concatenate(([0.0], np.cumsum(ordered_K)))
    seconds = cost.seconds(requests, requests + np.arange(len(tokens)))
    return tokens / seconds, seconds


def _alive(survival_RM: Floats) -> Floats:
    flat = survival_RM.reshape(-1)
    return flat[flat >= SURVIVAL_FLOOR]
