"""Whole tensors for files, whatever number of ranks they are spread over."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def is_sharded(tensor: Tensor) -> TypeIs[DTensor]:
    """Whether the tensor is spread over ranks."""
    # Importing DTensor takes a quarter of a rank's start; before anything has, there is none.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """The tensor as one piece, detached. Of a sharded one every rank has to ask at the same time."""
    if is_sharded(tensor):
        return tensor.full_tensor().detach()
    return tensor.detach()


def placed_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A copy of a whole tensor on the device of ``like``, sharded as ``like`` is."""
    # A copy, because a view into a file's buffer may be aligned differently, and with it the order of additions.
    copied = tensor.detach().to(like.device, copy=True)
    if is_sharded(like):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(copied, like.device_mesh, like.placements)
    return copied
