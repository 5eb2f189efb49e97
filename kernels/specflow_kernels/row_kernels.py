"""What kernels of several operators do with rows of heads: load and store them, padded to a tile."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_rows(pointer, place, real, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """``[rows, BLOCK_D]``; zeros where not ``real`` and beyond ``D``."""
    d = tl.arange(0, BLOCK_D)
    return tl.load(pointer + place[:, None] * D + d[None, :], mask=real[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def store_rows(pointer, place, real, rows, D: tl.constexpr, BLOCK_D: tl.constexpr):
    d = tl.arange(0, BLOCK_D)
    tl.store(pointer + place[:, None] * D + d[None, :], rows, mask=real[:, None] & (d < D)[None, :])
