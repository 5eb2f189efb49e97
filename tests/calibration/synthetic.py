"""Rounds whose true temperatures are known: position i is accepted with probability ``sigmoid(z_i / T_i)``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specflow.calibration.records import ConfidenceRecords


def synthetic(
    temperatures: Sequence[float], *, rounds: int, seed: int = 0, per_request: int = 20, shift: float = 1.0
) -> ConfidenceRecords:
    random = np.random.default_rng(seed)
    scale = np.asarray(temperatures)
    clean = random.normal(shift, 1.5, size=(rounds, len(scale)))
    happens = random.random(clean.shape) < 1 / (1 + np.exp(-clean))
    return ConfidenceRecords(
        logits_NM=(clean * scale).astype(np.float32),
        accepted_N=np.cumprod(happens, axis=1).sum(axis=1).astype(np.int64),
        request_N=np.arange(rounds) // per_request,
    )
