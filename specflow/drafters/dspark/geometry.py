"""The shape of a DSpark drafter: DFlash's backbone, which rows predict, and the heads behind it."""

from __future__ import annotations

from dataclasses import dataclass

from specflow.drafters.dflash.geometry import DFlashGeometry

HEADS = ("markov", "gated", "rnn")


@dataclass(frozen=True, slots=True, kw_only=True)
class DSparkGeometry(DFlashGeometry):
    """``block_size`` counts rows: m of them with ``sample_from_anchor``, m + 1 without it."""

    sample_from_anchor: bool
    """Row i predicts the token at ``anchor + 1 + i``; otherwise at its own position, and the anchor row nothing."""
    head: str
    """``markov``, ``gated`` or ``rnn``."""
    head_rank: int
    confidence: bool

    def __post_init__(self) -> None:
        DFlashGeometry.__post_init__(self)  # a class with slots is made anew, so super() does not know it
        if self.head not in HEADS:
            raise ValueError(f"head {self.head!r} is not one of {', '.join(HEADS)}")
        if self.head_rank < 1:
            raise ValueError(f"head_rank {self.head_rank} (at least 1)")

    @property
    def num_proposals(self) -> int:
        """m."""
        return self.block_size if self.sample_from_anchor else self.block_size - 1
