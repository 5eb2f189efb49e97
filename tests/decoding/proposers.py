"""Proposers whose proposals are known: right, wrong, or right up to a drawn length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class ScriptedProposer:
    """Knows the true continuation ``truth`` of ``prompt``; ``lengths(round)`` of its m proposals are right.

    Checks what it is fed: the features of every committed position once, in order, before each proposal.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        truth: Sequence[int],
        *,
        num_proposals: int,
        right: Callable[[int], int],
        layer_ids: tuple[int, ...] = (0, 2),
    ) -> None:
        self.num_proposals, self.layer_ids = num_proposals, layer_ids
        self._prompt, self._text = len(prompt), [*prompt, *truth]
        self._right, self._round = right, 0
        self.features: list[Tensor] = []
        self.capacity = 0

    def reset(self, capacity: int) -> None:
        self.features, self.capacity = [], capacity

    def extend(self, features_TKH: Tensor) -> None:
        self.features.append(features_TKH)

    def propose(self, anchor: int) -> Tensor:
        committed = sum(len(rows) for rows in self.features)
        assert committed + self.num_proposals <= self.capacity
        assert self._text[committed] == anchor, "the anchor sits right behind the committed rows"
        following = self._text[committed + 1 :]
        right, self._round = self._right(self._round), self._round + 1
        draft = []
        for i in range(self.num_proposals):
            true = following[i] if i < len(following) else 0
            draft.append(true if i < right else (true + 1) % 300)
        return torch.tensor(draft)
