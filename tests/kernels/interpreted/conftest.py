"""Triton's interpreter as precise as a device with bfloat16.

By itself it multiplies bfloat16 matrices as the integers that hold their bits, cuts float32 numbers off instead of
rounding them, and loses subnormal numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def widened(bits: Any) -> Any:
    """Float32 numbers of bfloat16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrowed(values: Any) -> Any:
    """Bits of the nearest bfloat16 numbers, ties to even."""
    rounded = torch.from_numpy(np.array(values, dtype=np.float32, copy=True)).bfloat16()
    return rounded.view(torch.uint16).numpy()


@pytest.fixture(autouse=True)
def _bfloat16() -> Iterator[None]:
    multiply, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def operand(of: Any) -> Any:
        return TensorHandle(widened(of.data), tl.float32) if of.dtype.scalar == tl.bfloat16 else of

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(self, operand(a), operand(b), *rest)

    def cast_impl(self: Any, source: Any, kind: Any) -> Any:
        pair = (source.dtype.scalar, kind.scalar)
        if pair == (tl.bfloat16, tl.float32):
            return TensorHandle(widened(source.data), tl.float32)
        if pair == (tl.float32, tl.bfloat16):
            return TensorHandle(narrowed(source.data), tl.bfloat16)
        return cast(self, source, kind)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_dot", create_dot)
        patch.setattr(InterpreterBuilder, "cast_impl", cast_impl)
        yield
