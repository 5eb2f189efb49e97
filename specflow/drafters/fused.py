"""Norm, rotation and gate as single autograd steps: they keep their inputs only and compute the rest again.

The forms that autograd would derive keep several tensors of the input's size and pass over memory twice as often.
All are computed in fp32 (float64 for float64 inputs), returned in the input's dtype, and differentiable once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / rms(x) * weight`` over the last dimension."""
    apply: Any = _RMSNorm.apply
    out: Tensor = apply(x, weight, eps)
    return out


def rms_norm_rotated(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    """``rms_norm`` of every head, then rotary position embedding (pairs are the two halves); at least fp32.

    ``x``: ``[..., heads, d]``; ``cos``, ``sin``: ``[..., d / 2]``.
    """
    apply: Any = _RMSNormRotated.apply
    out: Tensor = apply(x, weight, eps, cos.unsqueeze(-2), sin.unsqueeze(-2))
    return out


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up``."""
    apply: Any = _Gated.apply
    out: Tensor = apply(gate, up)
    return out


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = _wide(x)
        scale = _inverse_rms(wide, eps)
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).mul_(weight).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        d_x, d_weight = _norm_backward(_wide(grad), _wide(x), weight, scale)
        return d_x.to(x.dtype), d_weight.to(weight.dtype), None


class _RMSNormRotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
        wide = _wide(x)
        scale = _inverse_rms(wide, eps)
        ctx.save_for_backward(x, weight, scale, cos, sin)
        return _turned((wide * scale).mul_(weight), cos, sin, back=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale, cos, sin = ctx.saved_tensors
        d_x, d_weight = _norm_backward(_turned(_wide(grad), cos, sin, back=True), _wide(x), weight, scale)
        return d_x.to(x.dtype), d_weight.to(weight.dtype), None, None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad * up, gate), F.silu(gate).mul_(grad)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def _norm_backward(grad: Tensor, x: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of ``x * scale * weight`` for ``x`` and ``weight``; ``scale`` is ``x``'s inverse rms."""
    normal = x * scale
    per_weight = grad * normal
    d_weight = per_weight.flatten(0, -2).sum(dim=0)
    along = per_weight.mul_(weight).mean(dim=-1, keepdim=True)
    return (grad * weight).addcmul_(normal, along, value=-1).mul_(scale), d_weight


def _turned(x: Tensor, cos: Tensor, sin: Tensor, *, back: bool) -> Tensor:
    """Every pair turned by its angle, or back."""
    first, second = x.chunk(2, dim=-1)
    sign = -1.0 if back else 1.0
    out = torch.empty_like(x)
    half = x.shape[-1] // 2
    torch.mul(first, cos, out=out[..., :half]).addcmul_(second, sin, value=-sign)
    torch.mul(second, cos, out=out[..., half:]).addcmul_(first, sin, value=sign)
    return out
