"""What a held-out evaluation found: counts by document, and from them ratios with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specflow.training.bootstrap import ratio_intervals
from specflow.training.data import TrainingDocument
from specflow.training.walk_sums import WalkSums


@dataclass(slots=True, kw_only=True)
class Evaluation:
    proposals: int
    """m, proposals of a round."""
    kinds: Sequence[str]
    """Of each document, its kind of prompt."""
    documents: list[WalkSums] = field(default_factory=list)
    """Of each document, the counts of its walk; the unit that intervals resample."""
    correct: int = 0
    """Right proposals at random anchors, given the right text before the anchor."""
    judged: int = 0
    alternatives: dict[str, WalkSums] = field(default_factory=dict)
    """Walks of the same documents under other rules of choosing."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """What the method says of its own rounds."""

    def __post_init__(self) -> None:
        self.documents = self.documents or [WalkSums(proposals=self.proposals) for _ in self.kinds]

    @classmethod
    def of(cls, documents: Sequence[TrainingDocument], *, proposals: int) -> Evaluation:
        return cls(proposals=proposals, kinds=[document.kind for document in documents])

    @property
    def walk(self) -> WalkSums:
        return self._sum(self.documents)

    @property
    def by_kind(self) -> dict[str, WalkSums]:
        """Kinds that were walked, in alphabetical order."""
        return {kind: self._sum(found) for kind, found in self._groups().items()}

    def to_dict(self) -> dict[str, Any]:
        """JSON values. Intervals are 95 % bootstrap intervals over documents, none of fewer than two."""
        return {
            **self._figures(self.documents),
            "by_kind": {kind: self._figures(found) for kind, found in self._groups().items()},
            "teacher_forced_accuracy": self.correct / self.judged if self.judged else None,
            **({"alternatives": {n: s.to_dict() for n, s in self.alternatives.items()}} if self.alternatives else {}),
            **self.figures,
        }

    def _groups(self) -> dict[str, list[WalkSums]]:
        groups: dict[str, list[WalkSums]] = {}
        for kind, sums in zip(self.kinds, self.documents, strict=True):
            if sums.rounds:
                groups.setdefault(kind, []).append(sums)
        return dict(sorted(groups.items()))

    def _sum(self, found: Sequence[WalkSums]) -> WalkSums:
        total = WalkSums(proposals=self.proposals)
        for sums in found:
            total.add(sums)
        return total

    def _figures(self, found: Sequence[WalkSums]) -> dict[str, Any]:
        walked = [sums for sums in found if sums.rounds]
        intervals = ratio_intervals(
            [[s.delivered, *s.accepted, *s.accepted] for s in walked],
            [[s.rounds, *s.offered, *s.reached] for s in walked],
        ) or [None] * (1 + 2 * self.proposals)
        tau = intervals[0] or (None, None)
        return {
            **self._sum(found).to_dict(),
            "documents": len(walked),
            "tau_low": tau[0],
            "tau_high": tau[1],
            "acceptance_interval": intervals[1 : 1 + self.proposals],
            "conditional_interval": intervals[1 + self.proposals :],
        }
