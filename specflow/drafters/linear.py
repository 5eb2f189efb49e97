"""Frozen linear layers for proposers, in the arithmetic the engine runs in."""

from __future__ import annotations

from collections.abc import Callable

import torch
from specflow_kernels.packed_linear import PackedLinear
from torch import Tensor

Linear = Callable[[Tensor], Tensor]


def frozen_linear(weight_OI: Tensor, *, precision: str) -> Linear:
    """``fp32 [..., I] -> fp32 [..., O]`` with weights held as ``precision`` says (``fp32``, ``bf16`` or ``packed``)."""
    weight = weight_OI.detach()
    if precision == "packed":
        return PackedLinear(weight)
    if precision == "bf16":
        narrow = weight.to(torch.bfloat16).contiguous()
        return lambda x: torch.nn.functional.linear(x.to(torch.bfloat16), narrow).float()
    if precision == "fp32":
        wide = weight.float().contiguous()
        return lambda x: torch.nn.functional.linear(x, wide)
    raise ValueError(f"precision {precision!r} is not one of fp32, bf16, packed")
