"""Classes of equal probability, into which the target's own distribution folds its whole vocabulary.

Lay the tokens that may follow a text side by side in some order, each as wide as its probability, over [0, 1), and
draw a point of the token that did follow: if it has the target's distribution, the point is uniform and independent of
all the points before it (the randomised probability integral transform: Rosenblatt 1952, Brockwell 2007). So the
classes ``floor(point * classes)`` of all positions, whatever text, prompt and sampling they follow, are one sample of
the uniform distribution. Legend: V vocabulary, T positions of an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor

from specflow.decoding.distribution import distribution, penalised
from specflow.decoding.sampling import Sampling


class Order(StrEnum):
    """How tokens lie side by side. Either sees what the other does not."""

    LIKELY = "likely"
    """The most probable first: sees that likely tokens come too often, as where proposals stay too often."""
    SEEN = "seen"
    """Those of the answer so far, then the others, both in a fixed order that has nothing to do with their probability:
    sees that tokens come again too often, as where penalties or rows are mixed up, and that particular ids do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One position of an answer."""

    point: dict[Order, float]
    """In [0, 1)."""
    possible: bool
    """The token has a probability."""
    borderline: bool = False
    """It has one only because a filter's border, or a greedy tie, is decided by rounding."""


class Places:
    """Points of tokens, drawn with a generator of their own. ``slack``: relative error of a probability by rounding."""

    def __init__(self, vocabulary: int, *, slack: float, seed: int) -> None:
        self._numbers = np.random.default_rng((seed, vocabulary))
        self._rank_V = torch.from_numpy(self._numbers.permutation(vocabulary))
        self._slack = slack

    def of_answer(self, logits_TV: Tensor, answer: Sequence[int], sampling: Sampling) -> Iterator[Placed]:
        """Of every token of ``answer``; row i of the logits follows the i tokens before it."""
        before: Counter[int] = Counter()
        for token, logits_V in zip(answer, logits_TV, strict=True):
            yield self._place(logits_V, token, sampling, before)
            before[token] += 1

    def spare(self) -> float:
        """A point of no token."""
        return float(self._numbers.random())

    def _place(self, logits_V: Tensor, token: int, sampling: Sampling, emitted: Counter[int]) -> Placed:
        p_V = distribution(logits_V, sampling, emitted)
        share, inside = float(p_V[token]), float(self._numbers.random())
        likelier = p_V > share
        likelier[:token] |= p_V[:token] == share
        rank_V = self._rank_V
        if emitted:
            rank_V = rank_V.clone()
            rank_V[list(emitted)] -= rank_V.numel()
        earlier = rank_V < rank_V[token]
        point = {
            order: min(float(p_V[mask].sum()) + inside * share, float(np.nextafter(1.0, 0.0)))
            for order, mask in ((Order.LIKELY, likelier), (Order.SEEN, earlier))
        }
        if share > 0.0:
            return Placed(point=point, possible=True)
        near = self._nearly_possible(logits_V, token, sampling, emitted)
        return Placed(point=point, possible=near, borderline=near)

    def _nearly_possible(self, logits_V: Tensor, token: int, sampling: Sampling, emitted: Counter[int]) -> bool:
        """Whether filters that are wider by the slack, and by one token, keep ``token``."""
        if sampling.temperature == 0.0:
            wide_V = penalised(logits_V, sampling, emitted)
            return float(wide_V.max() - wide_V[token]) <= self._slack * float(wide_V.abs().max())
        wider = replace(
            sampling,
            top_k=None if sampling.top_k is None else sampling.top_k + 1,
            top_p=min(1.0, sampling.top_p * (1.0 + self._slack)),
            min_p=sampling.min_p * (1.0 - self._slack),
        )
        return float(distribution(logits_V, wider, emitted)[token]) > 0.0
