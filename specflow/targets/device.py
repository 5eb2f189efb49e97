"""Where a target runs, and how its results come back to the host."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow.targets.base import TargetError


def choose_device(asked: str) -> str:
    """``cpu`` or ``cuda`` for ``auto`` and either; raises ``TargetError`` where CUDA is asked for and not there."""
    available = torch.cuda.is_available()
    if asked == "cuda" and not available:
        raise TargetError(
            f"device 'cuda' is asked for, but torch {torch.__version__} finds none: use 'cpu' or 'auto', or install "
            "a torch built for CUDA and its driver"
        )
    return "cpu" if asked == "cpu" or not available else "cuda"


def device_of(device: str, worker: int) -> str:
    """The device of worker number ``worker``: CUDA devices are dealt out in turn."""
    return device if device == "cpu" else f"{device}:{worker % torch.cuda.device_count()}"


def to_host(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in host memory; from a CUDA device through pinned memory, all copies under way at once."""
    if all(t.device.type == "cpu" for t in tensors):
        return tensors
    copies = tuple(torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors)
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensors[0].device).synchronize()
    return copies
