"""A target of a few tokens whose logits are looked up, and proposers for it: everything can be enumerated.

The logits after a text depend on its last two tokens and its length, so that a row taken from another position, or a
text with another token in it, gives another distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from specflow.drafters.base import Committed, Draw, Proposal
from specflow.targets.base import TargetOutput


class TableCache:
    """The tokens of each request; the interface of ``specflow.targets.cache.Cache`` that decoding uses."""

    def __init__(self, texts: list[list[int]], first: int, count: int, capacity: int) -> None:
        self.texts, self.first, self.batch, self.capacity = texts, first, count, capacity
        self.passed: list[list[int]] = []

    @property
    def committed_B(self) -> Tensor:
        return torch.tensor([len(self.texts[self.first + b]) for b in range(self.batch)])

    def rows(self, first: int, count: int) -> TableCache:
        return TableCache(self.texts, self.first + first, count, self.capacity)

    def commit(self, counts: int | list[int]) -> None:
        each = [counts] * self.batch if isinstance(counts, int) else counts
        for b, count in enumerate(each):
            self.texts[self.first + b] += self.passed[b][:count]
        self.passed = []

    def rewind(self, request: int, length: int) -> None:
        del self.texts[self.first + request][length:]

    def copy(self, *, source: int, destination: int, length: int) -> None:
        self.texts[self.first + destination] = self.texts[self.first + source][:length]


class TableTarget:
    """``ends``: tokens that end a request. The hidden state of a row is its logits, the head the identity."""

    def __init__(self, vocab: int, *, seed: int = 0, ends: frozenset[int] = frozenset()) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.vocab_size, self.end_ids = vocab, ends
        self.table = 1.3 * torch.randn(8, vocab + 1, vocab, vocab, generator=generator)

    def new_cache(self, batch: int, capacity: int) -> TableCache:
        return TableCache([[] for _ in range(batch)], 0, batch, capacity)

    def after(self, text: list[int]) -> Tensor:
        """``[V]`` logits of the token after ``text``."""
        before = text[-2] if len(text) > 1 else self.vocab_size
        return self.table[len(text) % 8, before, text[-1]]

    def forward(self, ids_BT: Tensor, cache: TableCache, *, layer_ids: tuple[int, ...] = ()) -> TargetOutput:
        cache.passed = ids_BT.tolist()
        rows = []
        for b, new in enumerate(cache.passed):
            text = cache.texts[cache.first + b]
            assert len(text) + len(new) <= cache.capacity
            rows.append(torch.stack([self.after([*text, *new[: i + 1]]) for i in range(len(new))]))
        ids = ids_BT.float().view(*ids_BT.shape, 1, 1)  # the features are the tokens themselves
        return TargetOutput(last_hidden_BTH=torch.stack(rows), features_BTKH=ids if layer_ids else None)

    def head(self, hidden: Tensor) -> Tensor:
        return hidden


class TableProposer:
    """Looks its proposals up as well: close to the target's logits, different at every position of a round."""

    layer_ids = (0,)

    def __init__(
        self, target: TableTarget, *, num_proposals: int, seed: int = 1, excluded: tuple[int, ...] = ()
    ) -> None:
        self.num_proposals, self._target = num_proposals, target
        self._noise = torch.randn(num_proposals, target.vocab_size, generator=torch.Generator().manual_seed(seed))
        self._excluded = list(excluded)
        self.text: list[int] = []

    def fork(self) -> TableProposer:
        other = TableProposer.__new__(TableProposer)
        other.__dict__.update(self.__dict__)
        other.text = []
        return other

    def reset(self, capacity: int) -> None:
        self.text = []

    def extend(self, rows: Committed) -> None:
        self.text += rows.features_TKH.flatten().long().tolist()

    def _logits(self, text: list[int], i: int) -> Tensor:
        logits = 0.6 * self._target.after(text) + 0.8 * self._noise[i]
        logits[self._excluded] = float("-inf")
        return logits

    def propose(self, anchor: int) -> Tensor:
        text = [*self.text, anchor]
        for i in range(self.num_proposals):
            text.append(int(self._logits(text, i).argmax()))
        return torch.tensor(text[-self.num_proposals :])

    def sample(self, anchor: int, draw: Draw) -> Proposal:
        """Each proposal depends on those drawn before it."""
        text, rows = [*self.text, anchor], []
        for i in range(self.num_proposals):
            token, q_V = draw(self._logits(text, i))
            text.append(token)
            rows.append(q_V)
        return Proposal(tokens_m=torch.tensor(text[-self.num_proposals :]), q_mV=torch.stack(rows))


def memoised_distribution() -> object:
    """``distribution`` that remembers: thousands of enumerated paths ask for a few rows again and again."""
    from specflow.decoding.distribution import distribution

    @cache
    def compute(logits: tuple[float, ...], sampling: object, emitted: tuple[tuple[int, int], ...]) -> Tensor:
        return distribution(torch.tensor(logits), sampling, dict(emitted))  # type: ignore[arg-type]

    def remembered(logits_V: Tensor, sampling: object, emitted: Mapping[int, int]) -> Tensor:
        return compute(tuple(logits_V.tolist()), sampling, tuple(sorted(emitted.items())))

    return remembered
