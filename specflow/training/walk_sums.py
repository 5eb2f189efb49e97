"""Counts of a free-running walk; every ratio is formed once, at the end.

Tau counts the tokens a round delivers including the target's own one; the first token of an answer (from prefill)
belongs to no round; a round at the end of an answer counts only what the answer still needed (METHODS 0).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True, kw_only=True)
class WalkSums:
    proposals: int
    """m, proposals of a round."""
    rounds: int = 0
    delivered: int = 0
    offered: list[int] = field(default_factory=list)
    """Per position j: rounds in which the answer had a token at j."""
    accepted: list[int] = field(default_factory=list)
    """Per position j: of these, rounds in which proposals 1..j were all right."""
    reached: list[int] = field(default_factory=list)
    """Per position j: of these, rounds in which proposals 1..j-1 were all right."""

    def __post_init__(self) -> None:
        for name in ("offered", "accepted", "reached"):
            if not getattr(self, name):
                setattr(self, name, [0] * self.proposals)

    def add_round(self, *, accepted: int, remaining: int) -> int:
        """Count a round that accepted ``accepted`` of the ``remaining`` tokens after its anchor; returns delivered."""
        delivered = min(accepted + 1, remaining)
        self.rounds += 1
        self.delivered += delivered
        for j in range(min(self.proposals, remaining)):
            self.offered[j] += 1
            self.reached[j] += accepted >= j
            self.accepted[j] += accepted > j
        return delivered

    def add(self, other: WalkSums) -> None:
        self.rounds += other.rounds
        self.delivered += other.delivered
        for name in ("offered", "accepted", "reached"):
            setattr(self, name, [a + b for a, b in zip(getattr(self, name), getattr(other, name), strict=True)])

    @property
    def tau(self) -> float:
        """Mean tokens per round; 0 without rounds."""
        return self.delivered / self.rounds if self.rounds else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "tau": self.tau,
            "rounds": self.rounds,
            "tokens": self.delivered,
            "acceptance_per_position": _ratios(self.accepted, self.offered),
            "conditional_per_position": _ratios(self.accepted, self.reached),
        }


def _ratios(numerators: list[int], denominators: list[int]) -> list[float | None]:
    return [n / d if d else None for n, d in zip(numerators, denominators, strict=True)]


def answers_of(supervised_T: Tensor) -> list[tuple[int, int]]:
    """First and last position of every supervised run of at least two tokens."""
    padded = torch.nn.functional.pad(supervised_T.int(), (1, 1))
    change = padded[1:] - padded[:-1]
    starts, ends = (change == 1).nonzero().squeeze(1).tolist(), (change == -1).nonzero().squeeze(1).tolist()
    return [(start, end - 1) for start, end in zip(starts, ends, strict=True) if end - start >= 2]
