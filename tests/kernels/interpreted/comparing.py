"""A kernel against its reference: values, gradients against float64, outputs that hold rubbish beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from specflow_kernels.operator import flatten
from torch import Tensor

POISON = {torch.bool: True, torch.uint8: 251, torch.int8: -77, torch.int32: -77_777, torch.int64: -77_777_777}
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@contextmanager
def poisoned() -> Iterator[None]:
    """Memory that kernels write to holds NaN or a number that is no result, so that an unwritten place shows."""

    def fill(tensor: Tensor) -> Tensor:
        return tensor.fill_(float("nan") if tensor.is_floating_point() else POISON[tensor.dtype])

    with pytest.MonkeyPatch.context() as patch:
        for name in ("empty", "empty_like"):
            make = getattr(torch, name)
            patch.setattr(torch, name, lambda *args, _make=make, **kwargs: fill(_make(*args, **kwargs)))
        yield


def compare(kernel: Callable[..., Any], reference: Callable[..., Any], tensors: dict[str, Tensor], **rest: Any) -> None:
    """Values and gradients of ``tensors``, weighted at random, of the kernel against the reference in float64."""
    dtype = next(iter(tensors.values())).dtype
    near = {name: t.clone().requires_grad_() for name, t in tensors.items()}
    exact = {name: t.double().requires_grad_() for name, t in tensors.items()}
    with poisoned():
        found = [t for t in flatten(kernel(**near, **rest)) if t.is_floating_point()]
    wanted = [t for t in flatten(reference(**exact, **rest)) if t.is_floating_point()]
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one.double(), other, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    weights = [torch.randn(t.shape, generator=torch.Generator().manual_seed(3)).to(dtype) for t in wanted]
    with poisoned():
        _weighted(found, weights).backward()  # type: ignore[no-untyped-call]
    _weighted(wanted, weights).backward()  # type: ignore[no-untyped-call]
    for name, tensor in near.items():
        assert tensor.grad is not None, name
        gradient = exact[name].grad
        assert gradient is not None
        largest = max(1.0, float(gradient.abs().max()) if gradient.numel() else 0.0)
        torch.testing.assert_close(
            tensor.grad.double(), gradient, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * largest, msg=name
        )


def _weighted(outputs: list[Tensor], weights: list[Tensor]) -> Tensor:
    parts = [(t * w.to(t.dtype)).sum() for t, w in zip(outputs, weights, strict=True) if t.requires_grad]
    return torch.stack(parts).sum()
