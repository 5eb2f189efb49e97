"""The Triton kernels as one differentiable function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specflow_kernels.grouped_dynamic_conv.kernels import backward_kernel, forward_kernel
from specflow_kernels.launching import launch, power_of_two

TILE = 512
ROWS = 32
"""Rows of one program in the backward pass: a function of nothing, so that sums repeat."""


def grouped_dynamic_conv_triton(x_NBH: Tensor, base_tH: Tensor, delta_NBtG: Tensor) -> Tensor:
    """Same as the reference; shapes are checked by ``grouped_dynamic_conv``. Differentiable once."""
    apply: Any = _Conv.apply
    out: Tensor = apply(x_NBH, base_tH, delta_NBtG)
    return out


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, base: Tensor, delta: Tensor) -> Tensor:
        x, base, delta = x.contiguous(), base.contiguous(), delta.contiguous()
        (blocks, block, width), (taps, groups) = x.shape, delta.shape[2:]
        out = torch.empty_like(x)
        size = width // groups
        tile = max(size, min(TILE, power_of_two(width)))
        launch(
            forward_kernel, (blocks * block, -(-width // tile)), x, base, delta, out, block, width, groups, TAPS=taps,
            SIZE=size, BLOCK=tile,
        )  # fmt: skip
        ctx.save_for_backward(x, base, delta)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, base, delta = ctx.saved_tensors
        (blocks, block, width), (taps, groups) = x.shape, delta.shape[2:]
        rows, size = blocks * block, width // groups
        tile = max(size, min(TILE, power_of_two(width)))
        chunks = -(-rows // ROWS)
        d_x, d_delta = torch.empty_like(x), torch.empty_like(delta)
        d_base = torch.empty((chunks, taps, width), dtype=torch.float32, device=x.device)
        launch(
            backward_kernel, (chunks, -(-width // tile)), x, base, delta, grad.contiguous(), d_x, d_base, d_delta,
            rows, block, width, groups, ROWS, TAPS=taps, SIZE=size, BLOCK_T=power_of_two(taps), BLOCK=tile,
        )  # fmt: skip
        return d_x, d_base.sum(dim=0).to(base.dtype), d_delta
