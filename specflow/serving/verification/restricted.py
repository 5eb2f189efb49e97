"""A target that can say a few tokens only, so that its answers can be counted.

Everything but the head is the target's own: the logits of all other tokens are minus infinity, before the one function
that makes a distribution of them. Legend: H hidden size, V vocabulary, A tokens that are left, B requests, T rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specflow.decoding.distribution import distribution
from specflow.decoding.sampling import Sampling

Answer = tuple[int, ...]
CHUNK = 64
"""Texts run together."""
CONTEXTS = 8
"""Answers of one token after which the likeliest next ones are looked for too."""


class RestrictedTarget:
    """``allowed``: ids of the tokens that may follow any text; none: all."""

    def __init__(self, target: Any, allowed: Sequence[int] | None) -> None:
        self._target = target
        self.end_ids: frozenset[int] = target.end_ids
        self.vocab_size: int = target.vocab_size
        self.allowed = sorted(allowed) if allowed is not None else list(range(target.vocab_size))
        self._others_V = torch.ones(target.vocab_size, dtype=torch.bool)
        self._others_V[self.allowed] = False
        self.new_cache, self.forward = target.new_cache, target.forward

    @property
    def precision(self) -> str:
        return str(self._target.precision)

    def embed(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self._target.embed(ids)
        return embedded

    def head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._target.head(hidden)
        return logits.masked_fill(self._others_V.to(logits.device), float("-inf"))


def likely_alphabet(target: Any, prompt: Sequence[int], count: int) -> list[int]:
    """The ``count`` likeliest tokens after ``prompt`` and after its likeliest continuations by one token."""
    after_AV = next_logits(target, prompt, [()]).softmax(dim=-1)
    first = after_AV[0].topk(min(CONTEXTS, count)).indices.tolist()
    after_AV = torch.cat((after_AV, next_logits(target, prompt, [(token,) for token in first]).softmax(dim=-1)))
    return sorted(after_AV.mean(dim=0).topk(min(count, after_AV.shape[1])).indices.tolist())


def next_logits(target: Any, prompt: Sequence[int], answers: Sequence[Answer]) -> Tensor:
    """``[n, V]`` float64 logits after ``prompt`` and each of the answers, which have the same length."""
    parts = (answers[first : first + CHUNK] for first in range(0, len(answers), CHUNK))
    return torch.cat([target.head(hidden_behind(target, prompt, part)[:, -1]).double() for part in parts])


def hidden_behind(target: Any, prompt: Sequence[int], answers: Sequence[Sequence[int]]) -> Tensor:
    """``[n, T + 1, H]``: what the head reads after ``prompt`` and after each token of n answers of T tokens.

    One pass of ``prompt`` serves them all.
    """
    texts = [[prompt[-1], *answer] for answer in answers]
    cache = target.new_cache(len(texts), len(prompt) + len(texts[0]))
    if len(prompt) > 1:
        one = cache.rows(0, 1)
        target.forward(torch.tensor([list(prompt[:-1])]), one)
        one.commit(len(prompt) - 1)
        for other in range(1, len(texts)):
            cache.copy(source=0, destination=other, length=len(prompt) - 1)
    hidden: Tensor = target.forward(torch.tensor(texts), cache).last_hidden_BTH
    return hidden


def answer_distributions(
    target: RestrictedTarget, prompt: Sequence[int], *, length: int, samplings: Mapping[str, Sampling]
) -> dict[str, dict[Answer, float]]:
    """Of every sampling, the probability of every answer of plain decoding, by the chain rule over all texts."""
    found: dict[str, dict[Answer, float]] = {name: {(): 1.0} for name in samplings}
    for size in range(length):
        # An answer ends at an end token; the others go on.
        open_ = sorted({a for by in found.values() for a in by if len(a) == size and not set(a[-1:]) & target.end_ids})
        if not open_:
            break
        logits_nA = next_logits(target, prompt, open_)[:, target.allowed]
        for name, sampling in samplings.items():
            by = found[name]
            for answer, logits_A in zip(open_, logits_nA, strict=True):
                probability = by.pop(answer, 0.0)
                if probability:
                    row = distribution(logits_A, sampling, _columns(target, answer)).tolist()
                    by.update(
                        {
                            (*answer, token): probability * p
                            for token, p in zip(target.allowed, row, strict=True)
                            if p > 0.0
                        }
                    )
    return found


def _columns(target: RestrictedTarget, answer: Answer) -> Counter[int]:
    """Counts of the answer's tokens by their places among the allowed ones."""
    places = {token: place for place, token in enumerate(target.allowed)}
    return Counter(places[token] for token in answer)
