"""Hidden states in 8 bits: e4m3 or int8 codes, with one scale per token and layer.

An e4m3 scale is the least power of two that keeps the row within 448, so that a code times its scale is a bfloat16
number and reading loses nothing more. An int8 scale is the row's largest magnitude over 127, rounded up to bfloat16:
a power of two would waste up to one of its eight bits. Codes are the nearest ones, ties to even, exactly: quotients
of two bfloat16 numbers cannot come so near to a tie that float32 does not tell.

Legend: ``...`` tokens and layers, H hidden size.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

DTYPES = {"bfloat16": "bfloat16", "fp8": "float8_e4m3fn", "int8": "int8"}
"""Contract dtype of each ``capture.storage``."""
E4M3_MAX = 448.0
INT8_MAX = 127.0
SMALLEST_SCALE = 2.0**-126
"""The least normal bfloat16: a row below is as good as zero."""
LARGEST = 2.0**127
"""Beyond, rounding up could leave the range of bfloat16."""


class Quantised(NamedTuple):
    codes: Tensor
    """``[..., H]``: int8, or uint8 with the bits of e4m3."""
    scales: Tensor
    """``[...]`` bfloat16, positive."""


def quantise(rows: Tensor, dtype: str) -> Quantised:
    """``rows`` ``[..., H]`` bfloat16; ``dtype``: ``float8_e4m3fn`` or ``int8``.

    Raises ``ValueError`` for NaN, infinity and magnitudes above ``LARGEST``.
    """
    if rows.dtype != torch.bfloat16:
        raise ValueError(f"expected bfloat16 rows, found {rows.dtype}")
    rows = rows.cpu()
    # Magnitudes of floating-point numbers are in the order of their bits.
    largest = (rows.view(torch.int16) & 0x7FFF).amax(dim=-1).view(torch.bfloat16).float()
    good = largest <= LARGEST  # false for NaN
    if not bool(good.all()):
        bad = int(torch.count_nonzero(~good))
        raise ValueError(
            f"expected finite values up to {LARGEST:.2g}, found NaN, infinity or more in {bad} of {good.numel()} rows"
        )
    if dtype == "float8_e4m3fn":
        scales = _power_of_two(largest.clamp_min(E4M3_MAX * SMALLEST_SCALE))
        scaled = rows * scales.reciprocal().bfloat16()[..., None]  # exact but for what becomes 0 anyway
        codes = torch.from_numpy(_e4m3_of_bfloat16()[scaled.view(torch.uint16).numpy()])
    else:
        scales = _rounded_up(largest / INT8_MAX).clamp_min(SMALLEST_SCALE)
        codes = rows.float().div_(scales[..., None]).round_().clamp_(-INT8_MAX, INT8_MAX).to(torch.int8)
    return Quantised(codes, scales.bfloat16())


def dequantise(codes: Tensor, scales: Tensor, dtype: str) -> Tensor:
    """``[..., H]`` bfloat16."""
    if dtype == "float8_e4m3fn":
        values = torch.from_numpy(_bfloat16_of_e4m3()[codes.numpy()]).view(torch.bfloat16)
        return values.mul_(scales[..., None])
    return codes.float().mul_(scales[..., None].float()).bfloat16()


@cache
def _e4m3_of_bfloat16() -> np.ndarray[Any, Any]:
    """The nearest code of every bfloat16 number, by its bits; torch converts one by one, a table is much faster."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    codes: np.ndarray[Any, Any] = every.float().to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    return codes


@cache
def _bfloat16_of_e4m3() -> np.ndarray[Any, Any]:
    every = torch.arange(1 << 8, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn)
    bits: np.ndarray[Any, Any] = every.bfloat16().view(torch.uint16).numpy()
    return bits


def as_stored(rows: Tensor, dtype: str) -> Tensor:
    """What a reader would return for ``rows``: compare a recomputed row with a stored one after this."""
    rows = rows.bfloat16()
    return rows if dtype == "bfloat16" else dequantise(*quantise(rows, dtype), dtype)


def _power_of_two(largest: Tensor) -> Tensor:
    """The least power of two whose 448-fold is at least ``largest``, positive: 448 is 0.875 * 2**9."""
    mantissa, exponent = torch.frexp(largest)
    exponent = torch.where(mantissa <= E4M3_MAX / 512, exponent - 9, exponent - 8)
    return torch.ldexp(torch.ones_like(largest), exponent)


def _rounded_up(values: Tensor) -> Tensor:
    """The least bfloat16 at or above each positive float32."""
    return ((values.view(torch.int32) + 0xFFFF) & ~0xFFFF).view(torch.float32)
