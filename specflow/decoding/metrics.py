"""Acceptance of speculative decoding as sums with counts; a ratio is formed once, at the end.

Conventions (METHODS 0): tau counts what the user receives per round, bonus or correction included; the
first token belongs to no round; a round cut by an end token or the length limit counts what was delivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specflow.decoding.records import Generation

TAU_CONVENTION = (
    "delivered tokens per round, bonus or correction included; the first token belongs to no round; "
    "a round cut by an end token or the length limit counts what was delivered"
)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A sum and the count it is divided by."""

    total: float
    count: float

    @property
    def value(self) -> float | None:
        """None where nothing was counted."""
        return self.total / self.count if self.count else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Per position j = 1..m. ``cumulative[j-1]``: rounds accepting at least j of the rounds proposing j.

    Under a scheduler, of the rounds in which position j was verified: likely ones, so it is no share of all rounds.
    ``conditional[j-1]``: the same over the rounds that accepted j - 1 before it. In a tree, j is the depth, a round
    proposes as deep as its longest path, and one whose accepted path has no child at j counts as not accepting.
    """

    tau: Ratio
    cumulative: tuple[Ratio, ...]
    conditional: tuple[Ratio, ...]


def acceptance(generations: Iterable[Generation]) -> Acceptance:
    """Acceptance over all rounds of ``generations``."""
    rounds = [r for generation in generations for r in generation.rounds]
    tau = Ratio(sum(r.delivered for r in rounds), len(rounds))
    longest = max((r.judged for r in rounds), default=0)
    cumulative, conditional = [], []
    for j in range(1, longest + 1):
        proposing = [r for r in rounds if r.judged >= j]
        accepted = sum(r.accepted >= j for r in proposing)
        cumulative.append(Ratio(accepted, len(proposing)))
        conditional.append(Ratio(accepted, sum(r.accepted >= j - 1 for r in proposing)))
    return Acceptance(tau=tau, cumulative=tuple(cumulative), conditional=tuple(conditional))


def tokens_per_second(generations: Sequence[Generation]) -> Ratio:
    """Tokens after the first over the seconds from the first to the last."""
    return Ratio(sum(len(g.tokens) - 1 for g in generations), sum(g.decode_seconds for g in generations))
