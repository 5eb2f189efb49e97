"""Proposers whose proposals are known: right, wrong, or right up to a drawn length."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specflow.drafters.base import Committed, Draw, Proposal
from specflow.targets.target import Target


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

    def extend(self, rows: Committed) -> None:
        first = sum(len(part) for part in self.features) + 1
        known = self._text[first : first + len(rows.features_TKH)]
        assert rows.next_ids_T.tolist()[: len(known)] == known
        self.features.append(rows.features_TKH)

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


class NextTokenProposer:
    """Proposes what followed each token in known texts, so that some proposals of a greedy request are right.

    Draws too: from logits that favour the same tokens. Counts what it is fed, to see that no row is lost or mixed up.
    """

    def __init__(self, target: Target, texts: Sequence[Sequence[int]], *, num_proposals: int) -> None:
        self.num_proposals, self.layer_ids = num_proposals, (0, 2)
        self._vocab = target.vocab_size
        self._after = {a: b for text in texts for a, b in itertools.pairwise(text)}
        self.rows = 0
        self.forks: list[NextTokenProposer] = []

    def fork(self) -> NextTokenProposer:
        other = copy.copy(self)
        self.forks.append(other)
        return other

    def reset(self, capacity: int) -> None:
        self.rows, self.capacity = 0, capacity

    def extend(self, rows: Committed) -> None:
        self.rows += len(rows.features_TKH)
        assert self.rows + self.num_proposals < self.capacity

    def propose(self, anchor: int) -> Tensor:
        tokens = []
        for _ in range(self.num_proposals):
            anchor = self._after.get(anchor, self.rows % self._vocab)
            tokens.append(anchor)
        return torch.tensor(tokens)

    def sample(self, anchor: int, draw: Draw) -> Proposal:
        drawn = []
        for _ in range(self.num_proposals):
            logits_V = torch.zeros(self._vocab)
            logits_V[self._after.get(anchor, self.rows % self._vocab)] = 5.0
            drawn.append(draw(logits_V))
            anchor = drawn[-1][0]
        return Proposal(tokens_m=torch.tensor([t for t, _ in drawn]), q_mV=torch.stack([q for _, q in drawn]))
