"""Compaction of ragged rows by indexing: what the kernels must equal."""

from __future__ import annotations

import torch
from torch import Tensor


def compact_rows_reference(rows_BRH: Tensor, lengths_B: Tensor, *, capacity: int) -> tuple[Tensor, Tensor]:
    """``(rows_CH, places_C)``; arguments as in ``compact_rows``."""
    batch, size, width = rows_BRH.shape
    index = torch.arange(size, device=rows_BRH.device)
    kept = (index < lengths_B[:, None]).reshape(-1).nonzero().squeeze(1)[:capacity]
    places = torch.full((capacity,), -1, dtype=torch.int64, device=rows_BRH.device)
    places[: kept.numel()] = kept
    out = rows_BRH.new_zeros((capacity, width))
    out[: kept.numel()] = rows_BRH.reshape(batch * size, width)[kept]
    return out, places


def scatter_rows_reference(rows_CH: Tensor, lengths_B: Tensor, *, size: int) -> Tensor:
    """``[B, size, H]``; arguments as in ``scatter_rows``."""
    index = torch.arange(size, device=rows_CH.device)
    inside = index < lengths_B[:, None]
    first = lengths_B.cumsum(0) - lengths_B
    source = first[:, None] + index
    inside = inside & (source < rows_CH.shape[0])
    out = rows_CH.new_zeros((lengths_B.shape[0], size, rows_CH.shape[1]))
    out[inside] = rows_CH[source[inside]]
    return out
