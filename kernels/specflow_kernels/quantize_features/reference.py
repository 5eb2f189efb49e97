"""Hidden states in 8 bits in torch operations: what the kernels must equal, bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor

E4M3_MAX = 448.0
INT8_MAX = 127.0
SMALLEST_SCALE = 2.0**-126
LARGEST = 2.0**127


def quantize_features_reference(rows: Tensor, *, fp8: bool) -> tuple[Tensor, Tensor]:
    """``(codes [..., H], scales [...])``; arguments as in ``quantize_features``."""
    wide = rows.float()
    largest = wide.abs().amax(dim=-1)
    good = largest <= LARGEST  # false for NaN
    largest = torch.where(good, largest, 1.0)
    wide = torch.where(good[..., None], wide, 0.0)
    if fp8:
        mantissa, exponent = torch.frexp(largest.clamp_min(E4M3_MAX * SMALLEST_SCALE))
        exponent = torch.where(mantissa <= E4M3_MAX / 512, exponent - 9, exponent - 8)
        scales = torch.ldexp(torch.ones_like(largest), exponent)
        codes = (wide * scales.reciprocal()[..., None]).to(torch.float8_e4m3fn).view(torch.uint8)
    else:
        # Divided by a tensor: a division by a number may be done with its reciprocal, which rounds twice.
        up = (largest / torch.full_like(largest, INT8_MAX)).view(torch.int32)
        scales = ((up + 0xFFFF) & ~0xFFFF).view(torch.float32).clamp_min(SMALLEST_SCALE)
        codes = (wide / scales[..., None]).round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8)
    return codes, torch.where(good, scales, float("nan")).bfloat16()


def dequantize_features_reference(codes: Tensor, scales: Tensor) -> Tensor:
    """``[..., H]`` bfloat16; arguments as in ``dequantize_features``."""
    values = codes.view(torch.float8_e4m3fn) if codes.dtype == torch.uint8 else codes
    return (values.float() * scales.float()[..., None]).bfloat16()
