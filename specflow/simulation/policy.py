"""Ways to decode: without a drafter, with a fixed number of verified proposals, or with a scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specflow.config.scheduler import SchedulerMode, SchedulerParams
from specflow.costs.buckets import Buckets
from specflow.scheduling.allocation import Counts
from specflow.scheduling.lag import Slot
from specflow.scheduling.planner import Planner
from specflow.scheduling.scheduler import planner_of
from specflow.simulation.costs import RoundCost
from specflow.simulation.traces import Floats

Kind = Literal["plain", "fixed", "causal", "lagged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    kind: Kind
    length: int = 0
    """Proposals verified, of ``fixed``."""

    @property
    def scheduled(self) -> bool:
        return self.kind in ("causal", "lagged")

    @property
    def name(self) -> str:
        return f"fixed {self.length}" if self.kind == "fixed" else self.kind


PLAIN = Policy(kind="plain")


def policies_of(num_proposals: int, *, confident: bool) -> list[Policy]:
    """All that a drafter allows, the simplest first."""
    fixed = [Policy(kind="fixed", length=length) for length in range(1, num_proposals + 1)]
    return [*fixed, *(Policy(kind=k) for k in ("causal", "lagged") if confident)]


class Lengths:
    """Who drafts, and rows of each running request, round after round."""

    def __init__(
        self,
        policy: Policy,
        num_proposals: int,
        cost: RoundCost,
        buckets: Buckets | None = None,
        expected_M: Floats | None = None,
    ) -> None:
        self._fixed = policy.length + 1
        self._planner: Planner | None = None
        if policy.scheduled:
            mode: SchedulerMode = "causal" if policy.kind == "causal" else "lagged"
            params = SchedulerParams(mode=mode, buckets=None if buckets is None else buckets.sizes)
            self._planner = planner_of(
                params, num_proposals, cost=cost.without_drafting(), drafting=cost.drafting, expected_M=expected_M
            )

    def drafters(self, slots: Counts, generations: Counts) -> NDArray[np.bool_]:
        if self._planner is None:
            return np.full(len(slots), self._fixed > 1)
        return np.array(self._planner.drafters(_places(slots, generations)), dtype=np.bool_)

    def next(self, slots: Counts, generations: Counts, survival_RM: Floats | None) -> Counts:
        """``survival_RM``: rows of those that do not draft are not numbers."""
        if self._planner is None:
            return np.full(len(slots), self._fixed, dtype=np.int64)
        return self._planner.plan(_places(slots, generations), survival_RM)


def _places(slots: Counts, generations: Counts) -> list[Slot]:
    return [Slot(*place) for place in zip(slots.tolist(), generations.tolist(), strict=True)]
