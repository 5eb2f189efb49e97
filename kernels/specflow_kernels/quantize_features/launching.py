"""The Triton kernels behind ``quantize_features`` and ``dequantize_features``."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow_kernels.launching import launch, power_of_two
from specflow_kernels.quantize_features.kernels import dequantize_kernel, quantize_kernel

TILE = 2048


def quantize_features_triton(rows: Tensor, *, fp8: bool) -> tuple[Tensor, Tensor]:
    """Same as the reference, in one launch."""
    rows = rows.contiguous()
    width = rows.shape[-1]
    codes = torch.empty(rows.shape, dtype=torch.uint8 if fp8 else torch.int8, device=rows.device)
    scales = torch.empty(rows.shape[:-1], dtype=torch.bfloat16, device=rows.device)
    tile = min(TILE, power_of_two(width, least=16))
    launch(quantize_kernel, (scales.numel(),), rows, codes, scales, width, FP8=fp8, BLOCK=tile)
    return codes, scales


def dequantize_features_triton(codes: Tensor, scales: Tensor) -> Tensor:
    """Same as the reference, in one launch."""
    codes, scales = codes.contiguous(), scales.contiguous()
    width = codes.shape[-1]
    out = torch.empty(codes.shape, dtype=torch.bfloat16, device=codes.device)
    tile = min(TILE, power_of_two(width, least=16))
    launch(
        dequantize_kernel, (scales.numel(), -(-width // tile)), codes, scales, out, width,
        FP8=codes.dtype == torch.uint8, BLOCK=tile,
    )  # fmt: skip
    return out
