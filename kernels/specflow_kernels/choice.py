"""Which implementation an operator runs for given tensors, and why."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

LEAST_CAPABILITY = (8, 0)
FLOATS = (torch.bfloat16, torch.float16, torch.float32)


class Choice(NamedTuple):
    kernel: bool
    """Whether the Triton kernel runs; the PyTorch reference otherwise."""
    reason: str

    @property
    def name(self) -> str:
        return "triton" if self.kernel else "reference"


def choose(
    tensors: Iterable[Tensor], *, dtypes: tuple[torch.dtype, ...] = FLOATS, refusals: Iterable[tuple[bool, str]] = ()
) -> Choice:
    """The kernel where every tensor is on one CUDA device and in one of ``dtypes``, and nothing refuses it.

    ``refusals``: pairs of whether the kernel cannot take these inputs and the reason to give then.
    """
    tensors = tuple(tensors)
    first = tensors[0]
    if any(t.device != first.device for t in tensors):
        return Choice(False, f"tensors are on several devices: {sorted({str(t.device) for t in tensors})}")
    if not first.is_cuda:
        return Choice(False, f"tensors are on {first.device.type}; the kernel needs a CUDA device")
    if not has_triton():
        return Choice(False, "triton is not installed")
    capability = torch.cuda.get_device_capability(first.device)
    if capability < LEAST_CAPABILITY:
        return Choice(False, f"the device is sm_{capability[0]}{capability[1]}; the kernel needs sm_80 or newer")
    if first.dtype not in dtypes:
        return Choice(False, f"dtype {name_of(first.dtype)}; the kernel takes {', '.join(map(name_of, dtypes))}")
    if first.is_floating_point() and any(t.is_floating_point() and t.dtype != first.dtype for t in tensors):
        found = sorted({name_of(t.dtype) for t in tensors if t.is_floating_point()})
        return Choice(False, f"dtypes differ: {', '.join(found)}; the kernel needs one")
    for refused, reason in refusals:
        if refused:
            return Choice(False, reason)
    return Choice(True, f"{name_of(first.dtype)} on sm_{capability[0]}{capability[1]}")


def name_of(dtype: torch.dtype) -> str:
    """``bfloat16``."""
    return str(dtype).removeprefix("torch.")


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None
