"""A target of a few tokens whose logits are looked up, and proposers for it: everything can be enumerated.

The logits after a text depend on its last two tokens and its length, so that a row taken from another position, or a
text with another token in it, gives another distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Self

import torch
from torch import Tensor

from specflow.drafters.base import Committed, Draw, Proposal
from specflow.targets.base import TargetOutput


class TableCache:
    """The tokens of each request; the interface of ``specflow.targets.cache.Cache`` that decoding uses."""

    def __init__(self, texts: list[list[int]], first: int, count: int, capacity: int) -> None:
        self.texts, self.first, self.batch, self.capacity = texts, first, count, capacity
        self.passed: list[list[int]] = []
        self.parents: list[list[int]] = []

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

    def commit_paths(self, paths: list[list[int]]) -> None:
        for b, path in enumerate(paths):
            assert [self.parents[b][row] for row in path] == [-1, *path[:-1]][: len(path)]
            self.texts[self.first + b] += [self.passed[b][row] for row in path]
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

    def forward(
        self,
        ids_BT: Tensor,
        cache: TableCache,
        *,
        layer_ids: tuple[int, ...] = (),
        parents_BT: Tensor | None = None,
        rows: list[int] | None = None,
    ) -> TargetOutput:
        if rows is None:
            cache.passed = ids_BT.tolist()
            chain = torch.arange(-1, ids_BT.shape[1] - 1).expand(ids_BT.shape)
            cache.parents = (chain if parents_BT is None else parents_BT).tolist()
        else:
            assert len(rows) == cache.batch
            cache.passed = [part.tolist() for part in ids_BT[0].split(rows)]
            cache.parents = [list(range(-1, count - 1)) for count in rows]
        found = []
        for b, (new, parents) in enumerate(zip(cache.passed, cache.parents, strict=True)):
            text = cache.texts[cache.first + b]
            assert len(text) + len(new) <= cache.capacity
            texts: list[list[int]] = []
            for token, parent in zip(new, parents, strict=True):
                texts.append([*(texts[parent] if parent >= 0 else text), token])
            found.append(torch.stack([self.after(path) for path in texts]))
        ids = ids_BT.float().view(*ids_BT.shape, 1, 1)  # the features are the tokens themselves
        return TargetOutput(
            last_hidden_BTH=torch.cat(found).view(*ids_BT.shape, -1), features_BTKH=ids if layer_ids else None
        )

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

    def fork(self) -> Self:
        other = type(self).__new__(type(self))
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

    def begin_tree(self, anchor: int) -> Tensor:
        self._paths = [[anchor]]
        return self._log_q([*self.text, anchor], 0)

    def expand(self, tokens_b: Tensor, parents_b: Tensor) -> Tensor:
        rows = []
        for token, parent in zip(tokens_b.tolist(), parents_b.tolist(), strict=True):
            self._paths.append([*self._paths[parent], token])
            depth = len(self._paths[-1]) - 1
            rows.append(self._log_q([*self.text, *self._paths[-1]], depth % self.num_proposals))
        return torch.stack(rows)

    def _log_q(self, text: list[int], i: int) -> Tensor:
        """Nothing has a probability where every token is excluded."""
        return self._logits(text, i).log_softmax(dim=-1).nan_to_num(nan=float("-inf"), neginf=float("-inf"))

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


class ConfidentTableProposer(TableProposer):
    """Its confidence in a proposal depends on the text before it, as a drafter's does; ``sharp`` sets how much."""

    def __init__(self, target: TableTarget, *, num_proposals: int, sharp: float = 3.0, **options: object) -> None:
        super().__init__(target, num_proposals=num_proposals, **options)  # type: ignore[arg-type]
        self.confidence_m: Tensor | None = None
        self._sharp = sharp

    def propose(self, anchor: int) -> Tensor:
        return self._confident(anchor, super().propose(anchor))

    def sample(self, anchor: int, draw: Draw) -> Proposal:
        made = super().sample(anchor, draw)
        self._confident(anchor, made.tokens_m)
        return made

    def _confident(self, anchor: int, tokens_m: Tensor) -> Tensor:
        text = [*self.text, anchor]
        logits = []
        for token in tokens_m.tolist():
            logits.append(self._sharp * float(self._target.after(text)[0]))
            text.append(token)
        self.confidence_m = torch.tensor(logits)
        return tokens_m


def memoised_distribution() -> object:
    """``distribution`` that remembers: thousands of enumerated paths ask for a few rows again and again."""
    from specflow.decoding.distribution import distribution

    @cache
    def compute(logits: tuple[float, ...], sampling: object, emitted: tuple[tuple[int, int], ...]) -> Tensor:
        return distribution(torch.tensor(logits), sampling, dict(emitted))  # type: ignore[arg-type]

    def remembered(logits_V: Tensor, sampling: object, emitted: Mapping[int, int]) -> Tensor:
        return compute(tuple(logits_V.tolist()), sampling, tuple(sorted(emitted.items())))

    return remembered
