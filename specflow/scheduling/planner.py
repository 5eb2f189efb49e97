"""Rows to verify, round after round: ``off``, ``causal`` (this round's confidence alone) or ``lagged`` (a budget from
earlier rounds, spent by this round's confidence). All three leave the target's distribution as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specflow.costs.buckets import Buckets
from specflow.costs.tables import CostTable
from specflow.scheduling.allocation import Counts, allocate, causal_lengths
from specflow.scheduling.budget import host_budget
from specflow.scheduling.lag import LAG_ROUNDS, LagQueue, Slot
from specflow.scheduling.limits import Limits

Mode = Literal["off", "causal", "lagged"]
MODES: tuple[Mode, ...] = ("off", "causal", "lagged")


@dataclass(slots=True, kw_only=True)
class Planner:
    """``cost`` of a whole round; ``buckets``: the budget is raised to fill what would be computed anyway."""

    mode: Mode
    limits: Limits
    cost: CostTable | None = None
    buckets: Buckets | None = None
    lag: int = LAG_ROUNDS
    _queue: LagQueue = field(init=False)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r}: expected one of {', '.join(MODES)}")
        if self.mode != "off" and self.cost is None:
            raise ValueError(f"mode {self.mode!r} needs a cost table: without one every row would be verified")
        self._queue = LagQueue(self.lag)

    def plan(self, slots: Sequence[Slot], survival_RM: NDArray[np.float64] | None) -> Counts:
        """``[R]`` rows of this round; called once per round. No survival: every request in full."""
        full = np.full(len(slots), self.limits.most, dtype=np.int64)
        if self.mode == "off" or self.cost is None:
            return full
        lagged = self._queue.lagged(slots, self.limits.num_proposals)
        self._queue.publish(slots, survival_RM)
        if survival_RM is None or not slots:
            return full
        if self.mode == "causal":
            return causal_lengths(survival_RM, self.cost, self.limits)
        if lagged is None:
            return full
        budget = host_budget(lagged[:, : self.limits.most], self.cost).positions
        if self.buckets is not None:
            budget = self.buckets.filled(budget, requests=len(slots), most=survival_RM.size)
        return allocate(survival_RM, budget, self.limits)
