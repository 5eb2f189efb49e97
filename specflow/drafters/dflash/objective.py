"""The DFlash loss (METHODS 5): position-weighted cross-entropy, as a sum and its denominator.

Legend: N blocks, M = B - 1 proposals of a block, H hidden size, V rows of the (restricted) head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specflow.drafters.cross_entropy import target_cross_entropy

_DECAY_BY_BLOCK = ((16, 7.0), (10, 5.0), (8, 4.0))


def default_decay(block_size: int) -> float:
    """gamma 7, 5, 4 for blocks of 16, 10, 8; half the block below that."""
    for size, decay in _DECAY_BY_BLOCK:
        if block_size >= size:
            return decay
    return block_size / 2


def position_weights(block_size: int, decay: float) -> Tensor:
    """``[B-1]`` fp32: ``exp(-(j-1)/decay)`` for j = 1..B-1."""
    return torch.exp(-torch.arange(block_size - 1, dtype=torch.float32) / decay)


def total_weight(valid_NM: Tensor, *, decay: float) -> Tensor:
    """``sum M w``: known before any forward pass, so that micro-batches can share one denominator."""
    return (valid_NM * position_weights(valid_NM.shape[1] + 1, decay).to(valid_NM.device)).sum()


def weighted_cross_entropy(
    hidden_NMH: Tensor,
    head_VH: Tensor,
    labels_NM: Tensor,
    valid_NM: Tensor,
    *,
    decay: float,
    teacher_NMH: Tensor | None = None,
    soft_targets: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """``(sum M w CE, sum M w)`` of rows 1..B-1; the first has a gradient.

    ``labels_NM`` index rows of ``head_VH``; rows that are not valid never reach the head.

    ``soft_targets``: share of each row's target that is the teacher's distribution, the rest is the token itself.
    """
    weights = position_weights(labels_NM.shape[1] + 1, decay).to(valid_NM.device).expand_as(labels_NM)[valid_NM]
    losses = target_cross_entropy(
        hidden_NMH[valid_NM],
        head_VH,
        labels_NM[valid_NM],
        teacher_MH=None if teacher_NMH is None else teacher_NMH[valid_NM],
        share=soft_targets,
    )
    return (losses * weights).sum(), weights.sum()
