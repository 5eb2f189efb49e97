"""Grouped dynamic convolution along the rows of a block (METHODS 7): each row mixed with those just before it.

Legend: N blocks, B rows of a block, T taps, H channels, G groups of channels, s = H / G channels of a group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class BlockConvolution(nn.Module):
    """Around a sublayer: ``prepare`` mixes the rows it reads, ``finish`` those it wrote.

    Both kernels come from one projection of the rows read. At birth both are the identity. ``base_kernel`` is
    ``[2, T, H]``, the first index the side: input, output.
    """

    def __init__(self, hidden_size: int, *, taps: int, group_size: int) -> None:
        super().__init__()
        self.taps, self.groups = taps, hidden_size // group_size
        self.base_kernel = nn.Parameter(torch.empty(2, taps, hidden_size))
        self.kernel_projection = nn.Linear(hidden_size, 2 * taps * self.groups, bias=False)
        self.become_identity()

    @torch.no_grad()
    def become_identity(self) -> None:
        self.base_kernel.zero_()
        self.base_kernel[:, 0] = 1.0
        self.kernel_projection.weight.zero_()

    def prepare(self, x_NBH: Tensor) -> tuple[Tensor, Tensor]:
        """The mixed rows, and ``[N, B, T, G]`` what ``finish`` adds to its base kernel."""
        delta: Tensor = self.kernel_projection(x_NBH).view(*x_NBH.shape[:-1], 2, self.taps, self.groups)
        return convolve(x_NBH, self.base_kernel[0], delta[..., 0, :, :]), delta[..., 1, :, :]

    def finish(self, x_NBH: Tensor, delta_NBTG: Tensor) -> Tensor:
        return convolve(x_NBH, self.base_kernel[1], delta_NBTG)


def convolve(x_NBH: Tensor, base_TH: Tensor, delta_NBTG: Tensor) -> Tensor:
    """``out[t] = sum over taps of (base[tap] + delta[t, tap, group]) * x[t - tap]``; rows before the block are zero.

    At least fp32 inside, returned in the dtype of ``x``; keeps its inputs only. Differentiable once.
    """
    apply: Any = _Convolve.apply
    out: Tensor = apply(x_NBH, base_TH, delta_NBTG)
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


def _coefficients(base_TH: Tensor, delta_NBTG: Tensor, tap: int) -> Tensor:
    """``[N, B, H]`` of one tap."""
    base_Gs = base_TH[tap].view(delta_NBTG.shape[-1], -1)
    return (base_Gs + delta_NBTG[:, :, tap].unsqueeze(-1)).flatten(-2)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
