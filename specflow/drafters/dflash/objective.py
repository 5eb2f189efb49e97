"""Weights of a block's positions in the DFlash loss (METHODS 5).

Legend: N blocks, M = B - 1 proposals of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor

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


def weights_like(valid_NM: Tensor, *, decay: float) -> Tensor:
    """``[N, M]``: ``position_weights`` of every block, on its device."""
    return position_weights(valid_NM.shape[1] + 1, decay).to(valid_NM.device).expand(valid_NM.shape)


def total_weight(valid_NM: Tensor, *, decay: float) -> Tensor:
    """``sum M w``: known before any forward pass, so that micro-batches can share one denominator."""
    return (valid_NM * weights_like(valid_NM, decay=decay)).sum()
