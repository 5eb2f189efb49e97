"""A target that runs a prompt once, however many requests begin with it.

Certificates draw thousands of answers to a few prompts. The first pass over a prompt is kept: what its layers wrote
into the cache, and what the drafter reads of it. Legend: T rows of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specflow.targets.base import TargetOutput


class SharedPrompts:
    """``target`` for decoding. Passes that are no whole known prompt in an empty cache are the target's own."""

    def __init__(self, target: Any, prompts: Sequence[Sequence[int]]) -> None:
        self._target = target
        self._known = {tuple(prompt) for prompt in prompts}
        self._passed: dict[tuple[Any, ...], tuple[list[tuple[Tensor, Tensor, int]], TargetOutput]] = {}
        self.end_ids, self.vocab_size, self.precision = target.end_ids, target.vocab_size, target.precision
        self.new_cache, self.head, self.embed = target.new_cache, target.head, target.embed

    def forward(
        self, ids_BT: Tensor, cache: Any, *, layer_ids: tuple[int, ...] = (), parents_BT: Tensor | None = None
    ) -> TargetOutput:
        output: TargetOutput
        prompt = tuple(ids_BT[0].tolist()) if len(ids_BT) == 1 and parents_BT is None else ()
        if prompt not in self._known or int(cache.committed_B.max()):
            output = self._target.forward(ids_BT, cache, layer_ids=layer_ids, parents_BT=parents_BT)
            return output
        place = (prompt, layer_ids)
        if place not in self._passed:
            recording = _Recording(cache)
            output = self._target.forward(ids_BT, recording, layer_ids=layer_ids)
            self._passed[place] = recording.written, output
            return output
        written, output = self._passed[place]
        with torch.inference_mode():
            cache.begin_pass(len(prompt))
            for keys, values, layer in written:
                cache.update(keys, values, layer)
        return output


class _Recording:
    """A cache that remembers what a pass writes into it."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self.written: list[tuple[Tensor, Tensor, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *rest: Any, **named: Any) -> Any:
        self.written.append((key.clone(), value.clone(), layer_idx))
        return self._cache.update(key, value, layer_idx, *rest, **named)
