"""Fused steps against the plain formulas, in value and gradient, and what they keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specflow.drafters.fused import gated, rms_norm, rms_norm_rotated
from specflow.drafters.rope import cos_sin, rotate

torch.set_num_threads(1)
EPS = 1e-3
Function = Callable[..., Tensor]


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def angles() -> tuple[Tensor, Tensor]:
    cos, sin = cos_sin(torch.tensor([[3, 4, 5], [9, 10, 11]]), torch.tensor([1.0, 0.3, 0.1, 0.01]), 1.2)
    return cos.double(), sin.double()


CASES: dict[str, tuple[Function, Function, list[tuple[int, ...]]]] = {
    "rms_norm": (lambda x, w: rms_norm(x, w, EPS), plain_norm, [(2, 3, 8), (8,)]),
    "rms_norm_rotated": (
        lambda x, w: rms_norm_rotated(x, w, EPS, *(t.to(x.dtype) for t in angles())),
        lambda x, w: rotate(plain_norm(x, w), *(t.to(x.dtype) for t in angles())),
        [(2, 3, 5, 8), (8,)],
    ),
    "gated": (gated, lambda gate, up: F.silu(gate) * up, [(4, 6), (4, 6)]),
}


def inputs(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> list[Tensor]:
    g = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_equal_the_plain_formula(name: str) -> None:
    ours, plain, shapes = CASES[name]
    found, expected = inputs(shapes, torch.float64), inputs(shapes, torch.float64)
    out, wanted = ours(*found), plain(*expected)
    torch.testing.assert_close(out, wanted, rtol=1e-12, atol=1e-12)
    weights = torch.linspace(-1, 2, out.numel(), dtype=torch.float64).view(out.shape)
    (out * weights).sum().backward()
    (wanted * weights).sum().backward()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_gradient_equals_finite_differences(name: str) -> None:
    ours, _, shapes = CASES[name]
    assert torch.autograd.gradcheck(ours, inputs(shapes, torch.float64))


@pytest.mark.parametrize("name", CASES)
def test_narrow_inputs_lose_only_their_own_rounding(name: str) -> None:
    ours, plain, shapes = CASES[name]
    narrow = inputs(shapes, torch.bfloat16)
    wide = [t.detach().double().requires_grad_() for t in narrow]
    out, wanted = ours(*narrow), plain(*wide)
    out.float().sum().backward()
    wanted.sum().backward()
    assert (out.double() - wanted).norm() <= 1e-2 * wanted.norm()
    for a, b in zip(narrow, wide, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert a.grad.dtype == torch.bfloat16
        assert (a.grad.double() - b.grad).norm() <= 2e-2 * b.grad.norm() + 2e-2


@pytest.mark.parametrize("name", CASES)
def test_only_the_inputs_are_kept(name: str) -> None:
    ours, _, shapes = CASES[name]
    kept: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        ours(*inputs(shapes, torch.float32))
    largest = max(torch.Size(shape).numel() for shape in shapes)
    assert sum(t.numel() == largest for t in kept) == (2 if name == "gated" else 1)
