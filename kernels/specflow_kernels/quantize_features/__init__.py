"""Hidden states in 8 bits with a scale per token and layer: the codes that the feature store holds.

An e4m3 scale is the least power of two that keeps the row within 448; an int8 scale is the row's largest magnitude over
127, rounded up to bfloat16. Codes are the nearest ones, ties to even.

Legend: ``...`` tokens and layers, H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specflow_kernels.choice import Choice, choose
from specflow_kernels.quantize_features.reference import dequantize_features_reference, quantize_features_reference


def quantize_features(rows: Tensor, *, fp8: bool) -> tuple[Tensor, Tensor]:
    """``(codes [..., H], scales [...])`` of bfloat16 rows: uint8 with the bits of e4m3, or int8; bfloat16 scales.

    A row with NaN, infinity or a magnitude above ``2 ** 127`` has the scale NaN and codes 0. Raises ``ValueError`` for
    another dtype.
    """
    if rows.dtype != torch.bfloat16:
        raise ValueError(f"expected bfloat16 rows, found {rows.dtype}")
    if explain(rows, fp8=fp8).kernel:
        from specflow_kernels.quantize_features.launching import quantize_features_triton

        return quantize_features_triton(rows, fp8=fp8)
    return quantize_features_reference(rows, fp8=fp8)


def dequantize_features(codes: Tensor, scales: Tensor) -> Tensor:
    """``[..., H]`` bfloat16. Raises ``ValueError`` for other codes than uint8 and int8, or scales of another shape."""
    if codes.dtype not in (torch.uint8, torch.int8) or scales.shape != codes.shape[:-1]:
        raise ValueError(
            f"expected uint8 or int8 codes and a scale per row, found {codes.dtype} {tuple(codes.shape)} and "
            f"{tuple(scales.shape)}"
        )
    if explain_dequantize(codes, scales).kernel:
        from specflow_kernels.quantize_features.launching import dequantize_features_triton

        return dequantize_features_triton(codes, scales)
    return dequantize_features_reference(codes, scales)


def explain(rows: Tensor, *, fp8: bool) -> Choice:
    """What :func:`quantize_features` would run for these tensors, and why."""
    return choose((rows,), dtypes=(torch.bfloat16,), refusals=((rows.shape[-1] == 0, "rows without columns"),))


def explain_dequantize(codes: Tensor, scales: Tensor) -> Choice:
    """What :func:`dequantize_features` would run for these tensors, and why."""
    return choose((codes, scales), dtypes=(torch.uint8, torch.int8))
