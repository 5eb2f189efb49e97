"""Tensors inside the plain structures that methods use for their batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor


def to_device(value: Any, device: torch.device) -> Any:
    """``value`` with every tensor in it on ``device``; the same object where nothing would change."""
    if device.type == "cpu":
        return value
    return _mapped(value, lambda tensor: tensor.to(device, non_blocking=True))


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of nested dataclasses, tuples, lists and dicts with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _mapped(getattr(value, f.name), change) for f in fields(value)})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(item, change) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(_mapped(item, change) for item in value)
    if isinstance(value, dict):
        return {name: _mapped(item, change) for name, item in value.items()}
    return value
