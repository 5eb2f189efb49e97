"""Runs a model from the output of its last layer but one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def only_last_layer(layers: nn.ModuleList, hidden_BTH: Tensor) -> Iterator[None]:
    """Inside, the layers before the last do nothing, and the last one reads ``hidden_BTH``.

    The model's own forward stays in charge, so that rotary embeddings, masks and kinds of layers are what they are.
    """

    def skip(hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden

    def replace(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if arguments:
            return (hidden_BTH, *arguments[1:]), named
        return arguments, {**named, "hidden_states": hidden_BTH}

    handle = layers[-1].register_forward_pre_hook(replace, with_kwargs=True)
    skipped = list(layers)[:-1]
    try:
        for layer in skipped:
            layer.forward = skip
        yield
    finally:
        handle.remove()
        for layer in skipped:
            del layer.forward
