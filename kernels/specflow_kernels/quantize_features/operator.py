"""Examples and cost of features in 8 bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specflow_kernels.cost import Cost
from specflow_kernels.operator import Case, Operator
from specflow_kernels.quantize_features import dequantize_features, explain, explain_dequantize, quantize_features
from specflow_kernels.quantize_features.reference import dequantize_features_reference, quantize_features_reference


def make(device: torch.device, *, tokens: int, layers: int, width: int, fp8: bool) -> dict[str, Any]:
    return {"rows": torch.randn(tokens, layers, width, device=device, dtype=torch.bfloat16), "fp8": fp8}


def make_codes(device: torch.device, *, tokens: int, layers: int, width: int, fp8: bool) -> dict[str, Any]:
    dtype = torch.uint8 if fp8 else torch.int8
    return {
        "codes": torch.randint(100, (tokens, layers, width), device=device, dtype=dtype),
        "scales": torch.ones(tokens, layers, device=device, dtype=torch.bfloat16),
    }


def cost(rows: Tensor, **_: Any) -> Cost:
    """Two bytes read and one written for every number; it is looked at twice."""
    return Cost(bytes=3 * rows.numel() + 2 * rows.numel() // rows.shape[-1], operations=3 * rows.numel())


def dequantize_cost(codes: Tensor, scales: Tensor) -> Cost:
    return Cost(bytes=3 * codes.numel() + 2 * scales.numel(), operations=codes.numel())


def kernel(**inputs: Any) -> tuple[Tensor, Tensor]:
    from specflow_kernels.quantize_features.launching import quantize_features_triton

    return quantize_features_triton(**inputs)


def dequantize_kernel(**inputs: Any) -> Tensor:
    from specflow_kernels.quantize_features.launching import dequantize_features_triton

    return dequantize_features_triton(**inputs)


QUANTIZE = Operator(
    name="quantize_features",
    summary="hidden states in 8 bits, a scale per token and layer",
    public=quantize_features,
    kernel=kernel,
    reference=quantize_features_reference,
    explain=explain,
    cost=cost,
    in_fp32=False,
    cases=(
        Case(
            name="SmolLM2-135M, fp8",
            make=lambda device: make(device, tokens=2048, layers=3, width=576, fp8=True),
        ),
        Case(
            name="8B, int8",
            make=lambda device: make(device, tokens=8192, layers=5, width=4096, fp8=False),
        ),
    ),
)
DEQUANTIZE = Operator(
    name="dequantize_features",
    summary="hidden states from 8 bits",
    public=dequantize_features,
    kernel=dequantize_kernel,
    reference=dequantize_features_reference,
    explain=explain_dequantize,
    cost=dequantize_cost,
    in_fp32=False,
    cases=(
        Case(
            name="SmolLM2-135M, fp8",
            make=lambda device: make_codes(device, tokens=2048, layers=3, width=576, fp8=True),
        ),
        Case(
            name="8B, int8",
            make=lambda device: make_codes(device, tokens=8192, layers=5, width=4096, fp8=False),
        ),
    ),
)
