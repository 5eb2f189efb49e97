"""The convolution without the kernel, a tap at a time in place: keeps its inputs only. Any device and dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def grouped_dynamic_conv_vectorised(x_NBH: Tensor, base_tH: Tensor, delta_NBtG: Tensor) -> Tensor:
    """Arguments as in ``grouped_dynamic_conv``. Differentiable once."""
    apply: Any = _Convolve.apply
    out: Tensor = apply(x_NBH, base_tH, delta_NBtG)
    return out


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, base: Tensor, delta: Tensor) -> Tensor:
        ctx.save_for_backward(x, base, delta)
        wide = _wide(x)
        out = wide * _coefficients(base, delta, 0)
        for tap in range(1, min(base.shape[0], x.shape[1])):
            out[:, tap:].addcmul_(_coefficients(base, delta[:, tap:], tap), wide[:, :-tap])
        return out.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, base, delta = ctx.saved_tensors
        wide, grad = _wide(x), _wide(grad)
        d_x = grad * _coefficients(base, delta, 0)
        d_base, d_delta = torch.zeros_like(base), torch.zeros_like(delta)
        for tap in range(min(base.shape[0], x.shape[1])):
            later = grad[:, tap:]
            if tap:
                d_x[:, :-tap].addcmul_(later, _coefficients(base, delta[:, tap:], tap))
            d_coefficient = later * wide[:, : x.shape[1] - tap]
            d_base[tap] = d_coefficient.flatten(0, 1).sum(dim=0)
            by_group = d_coefficient.view(*d_coefficient.shape[:2], delta.shape[-1], -1)
            d_delta[:, tap:, tap] = by_group.sum(dim=-1).to(delta.dtype)
        return d_x.to(x.dtype), d_base, d_delta


def _coefficients(base_tH: Tensor, delta_NBtG: Tensor, tap: int) -> Tensor:
    """``[N, B, H]`` of one tap, at least fp32."""
    base_Gs = _wide(base_tH[tap]).view(delta_NBtG.shape[-1], -1)
    return (base_Gs + delta_NBtG[:, :, tap].unsqueeze(-1)).flatten(-2)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
