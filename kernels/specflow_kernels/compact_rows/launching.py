"""The Triton kernels behind ``compact_rows`` and ``scatter_rows``."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow_kernels.compact_rows.kernels import compact_kernel, scatter_kernel
from specflow_kernels.launching import launch, power_of_two

TILE = 1024


def compact_rows_triton(rows_BRH: Tensor, lengths_B: Tensor, *, capacity: int) -> tuple[Tensor, Tensor]:
    """Same as the reference, in one launch; nothing is read back."""
    rows = rows_BRH.contiguous()
    batch, size, width = rows.shape
    out = torch.empty((capacity, width), dtype=rows.dtype, device=rows.device)
    places = torch.empty(capacity, dtype=torch.int64, device=rows.device)
    tile = min(TILE, power_of_two(width, least=16))
    launch(
        compact_kernel, (capacity, -(-width // tile)), rows, lengths_B.cumsum(0), out, places, batch, size, width,
        BLOCK_B=power_of_two(batch, least=2), BLOCK_H=tile,
    )  # fmt: skip
    return out, places


def scatter_rows_triton(rows_CH: Tensor, lengths_B: Tensor, *, size: int) -> Tensor:
    """Same as the reference, in one launch."""
    rows, lengths = rows_CH.contiguous(), lengths_B.contiguous()
    (capacity, width), batch = rows.shape, lengths.shape[0]
    out = torch.empty((batch, size, width), dtype=rows.dtype, device=rows.device)
    tile = min(TILE, power_of_two(width, least=16))
    launch(
        scatter_kernel, (batch, size, -(-width // tile)), rows, lengths, lengths.cumsum(0), out, capacity, size, width,
        BLOCK_H=tile,
    )  # fmt: skip
    return out
