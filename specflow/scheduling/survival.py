"""From confidence to survival: how likely each position is to be reached and accepted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def survival_of(confidence_RM: ArrayLike, temperatures: Sequence[float] | None = None) -> NDArray[np.float64]:
    """``[R, M]`` products up to each position of ``sigmoid(logit / temperature)``, formed in fp32 as engines do."""
    logits_RM = np.asarray(confidence_RM, dtype=np.float32)
    scale = np.ones(logits_RM.shape[-1], np.float32) if temperatures is None else np.asarray(temperatures, np.float32)
    if scale.shape != logits_RM.shape[-1:]:
        raise ValueError(f"{scale.size} temperatures for {logits_RM.shape[-1]} proposals")
    with np.errstate(over="ignore"):  # exp of a large number is infinity, and its sigmoid 0
        probability_RM = 1.0 / (1.0 + np.exp(-logits_RM / scale))
    survival_RM: NDArray[np.float64] = np.cumprod(probability_RM, axis=-1, dtype=np.float32).astype(np.float64)
    return survival_RM
