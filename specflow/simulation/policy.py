"""Ways to decode: without a drafter, with a fixed number of verified proposals, or with a scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from specflow.costs.buckets import Buckets
from specflow.costs.tables import CostTable
from specflow.scheduling.allocation import Counts
from specflow.scheduling.lag import Slot
from specflow.scheduling.limits import Limits
from specflow.scheduling.planner import Mode, Planner
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
    """Rows of each running request, round after round."""

    def __init__(self, policy: Policy, num_proposals: int, cost: CostTable, buckets: Buckets | None = None) -> None:
        self._fixed = policy.length + 1
        self._planner: Planner | None = None
        if policy.scheduled:
            mode: Mode = "causal" if policy.kind == "causal" else "lagged"
            limits = Limits(num_proposals=num_proposals)
            self._planner = Planner(mode=mode, limits=limits, cost=cost, buckets=buckets)

    def next(self, slots: Counts, generations: Counts, survival_RM: Floats | None) -> Counts:
        if self._planner is None:
            return np.full(len(slots), self._fixed, dtype=np.int64)
        places = [Slot(*place) for place in zip(slots.tolist(), generations.tolist(), strict=True)]
        return self._planner.plan(places, survival_RM)
