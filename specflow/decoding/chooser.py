"""The choices of one request: its sampling, its random numbers, and the tokens it has emitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from specflow.decoding.distribution import distribution
from specflow.decoding.randomness import Purpose, RequestRandom
from specflow.decoding.sampling import Sampling


class Chooser:
    """Legend: V vocabulary. Tokens count as emitted when the user has them, so never beyond an end token."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.random = RequestRandom(sampling.seed)
        self.length = 0
        """Tokens emitted: the index of the next one."""
        self._emitted: Counter[int] = Counter()

    def emit(self, tokens: Iterable[int]) -> None:
        """Make ``tokens`` part of the output."""
        tokens = list(tokens)
        self.length += len(tokens)
        if self.sampling.penalised:
            self._emitted.update(tokens)

    def after(self, tokens: Sequence[int] = ()) -> Counter[int]:
        """Counts of the output followed by ``tokens``; empty where no penalty reads them."""
        return self._emitted + Counter(tokens) if self.sampling.penalised else Counter()

    def token(self, logits_V: Tensor) -> int:
        """The next token of plain decoding."""
        return self.draw_target(distribution(logits_V, self.sampling, self._emitted), index=self.length)

    def draw_target(self, weights_V: Tensor, *, index: int) -> int:
        """The target's token at ``index`` of the output."""
        return self.random.choose(weights_V, purpose=Purpose.TARGET, place=(index,))


class Drafting:
    """Draws the proposals of one round, in order; see ``specflow.drafters.base.Draw``."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser, self._sampling = chooser, chooser.sampling.drafting
        self._tokens: list[int] = []

    def __call__(self, logits_V: Tensor) -> tuple[int, Tensor]:
        chooser = self._chooser
        q_V = distribution(logits_V, self._sampling, chooser.after(self._tokens))
        place = (chooser.length, len(self._tokens))
        token = chooser.random.choose(q_V, purpose=Purpose.DRAFT, place=place)
        self._tokens.append(token)
        return token, q_V


def choose_tokens(logits_BV: Tensor, choosers: Sequence[Chooser]) -> list[int]:
    """The next token of each request, which depends on its own row only."""
    greedy_B: list[int] = logits_BV.argmax(dim=-1).tolist()
    rows = zip(choosers, logits_BV, greedy_B, strict=True)
    return [greedy if chooser.sampling.argmax else chooser.token(row_V) for chooser, row_V, greedy in rows]


def residual(p_V: Tensor, q_V: Tensor | None, rejected: int) -> Tensor:
    """``[V]`` distribution of the token that replaces a rejected proposal: ``max(p - q, 0)``, normalised.

    ``q_V`` none: the proposal was certain. Where rounding leaves nothing, p and q are equal, and p is returned.
    """
    if q_V is None:
        rest_V = p_V.clone()
        rest_V[rejected] = 0.0
    else:
        rest_V = (p_V - q_V.to(p_V)).clamp_min(0.0)
    mass = rest_V.sum()
    return p_V if float(mass) == 0.0 else torch.div(rest_V, mass)
