"""Whole tensors for files, whatever number of ranks they are spread over."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(tensor: Tensor) -> Tensor:
    """The tensor as one piece, detached. Of a sharded one every rank has to ask at the same time."""
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor.detach()


def placed_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A copy of a whole tensor on the device of ``like``, sharded as ``like`` is."""
    # A copy, because a view into a file's buffer may be aligned differently, and with it the order of additions.
    copied = tensor.detach().to(like.device, copy=True)
    if isinstance(like, DTensor):
        return distribute_tensor(copied, like.device_mesh, like.placements)
    return copied
