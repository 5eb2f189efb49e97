"""Examples and cost of the grouped dynamic convolution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specflow_kernels.cost import Cost, bytes_of
from specflow_kernels.grouped_dynamic_conv import explain, grouped_dynamic_conv
from specflow_kernels.grouped_dynamic_conv.reference import grouped_dynamic_conv_reference
from specflow_kernels.operator import Case, Operator


def make(device: torch.device, *, blocks: int, block: int, width: int, taps: int, size: int) -> dict[str, Any]:
    """``size``: channels of a group."""
    dtype = torch.bfloat16
    return {
        "x_NBH": torch.randn(blocks, block, width, device=device, dtype=dtype),
        "base_tH": torch.randn(taps, width, device=device, dtype=dtype),
        "delta_NBtG": torch.randn(blocks, block, taps, width // size, device=device, dtype=dtype),
    }


def cost(x_NBH: Tensor, base_tH: Tensor, delta_NBtG: Tensor) -> Cost:
    """Inputs read and output written once."""
    moved = bytes_of((x_NBH, x_NBH, base_tH, delta_NBtG))
    return Cost(bytes=moved, operations=3 * base_tH.shape[0] * x_NBH.numel())


def backward_cost(x_NBH: Tensor, base_tH: Tensor, delta_NBtG: Tensor) -> Cost:
    moved = bytes_of((x_NBH, x_NBH, x_NBH, base_tH, base_tH, delta_NBtG, delta_NBtG))
    return Cost(bytes=moved, operations=6 * base_tH.shape[0] * x_NBH.numel())


def kernel(**inputs: Any) -> Tensor:
    from specflow_kernels.grouped_dynamic_conv.differentiable import grouped_dynamic_conv_triton

    return grouped_dynamic_conv_triton(**inputs)


OPERATOR = Operator(
    name="grouped_dynamic_conv",
    summary="causal convolution inside a block with factors of each row",
    public=grouped_dynamic_conv,
    kernel=kernel,
    reference=grouped_dynamic_conv_reference,
    explain=explain,
    cost=cost,
    backward_cost=backward_cost,
    differentiable=("x_NBH", "base_tH", "delta_NBtG"),
    cases=(
        Case(
            name="SmolLM2-135M",
            make=lambda device: make(
                device, blocks=32, block=6, width=576, taps=2, size=16
            ),
        ),
        Case(
            name="8B, 512 blocks of 16",
            make=lambda device: make(device, blocks=512, block=16, width=4096, taps=2, size=16),
        ),
    ),
)  # fmt: skip
