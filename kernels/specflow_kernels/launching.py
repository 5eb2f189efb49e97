"""The one place where kernels are launched; a launch can be recorded instead, to be compiled for another device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A kernel with the arguments it would have run with."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    """Compile-time constants by name."""
    warps: int
    stages: int
    registers: int | None


@dataclass(slots=True)
class Recording:
    capability: int
    """Of the device that the launches are meant for: 90 for sm_90."""
    launches: list[Launch] = field(default_factory=list)


_recording: ContextVar[Recording | None] = ContextVar("recording", default=None)


@contextmanager
def recording(capability: int) -> Iterator[Recording]:
    """Nothing is launched inside; outputs keep whatever their memory holds. Meta tensors will do as inputs."""
    found = Recording(capability)
    token = _recording.set(found)
    try:
        yield found
    finally:
        _recording.reset(token)


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *arguments: Any,
    warps: int = 4,
    stages: int = 2,
    registers: int | None = None,
    **constants: Any,
) -> None:
    """Run ``kernel`` with ``arguments`` in its order, then ``constants`` by name; nothing if the grid is empty.

    The first argument is a tensor: the launch is made on its device. ``registers``: of a thread at most; by itself the
    assembler may rather spill a few bytes than use one more, so that more programs fit on a multiprocessor.
    """
    if 0 in grid:
        return
    record = _recording.get()
    if record is not None:
        record.launches.append(
            Launch(
                kernel=kernel, grid=grid, arguments=arguments, constants=constants, warps=warps, stages=stages,
                registers=registers,
            )
        )  # fmt: skip
        return
    limit = {} if registers is None else {"maxnreg": registers}
    # A launch goes to the current device, wherever its tensors are.
    with torch.cuda.device_of(arguments[0]):  # type: ignore[no-untyped-call]
        kernel[grid](*arguments, num_warps=warps, num_stages=stages, enable_fp_fusion=True, **limit, **constants)


def capability_of(tensor: Tensor) -> int:
    """Of the tensor's device, or of the one that launches are recorded for; tiles may depend on it."""
    record = _recording.get()
    if record is not None:
        return record.capability
    if tensor.is_cuda:
        major, minor = torch.cuda.get_device_capability(tensor.device)
        return 10 * major + minor
    return 90  # the interpreter has no limits


def power_of_two(count: int, *, least: int = 1) -> int:
    """The least power of two that is at least both."""
    return max(least, 1 << max(0, count - 1).bit_length())
