"""Rows to verify, round after round: ``off``, ``causal`` (this round's confidence alone) or ``lagged`` (a budget from
earlier rounds, spent by this round's confidence). All three leave the target's distribution as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specflow.config.scheduler import SCHEDULER_MODES, SchedulerMode
from specflow.costs.buckets import Buckets
from specflow.costs.drafting import DraftCost
from specflow.costs.remembered import Remembered
from specflow.costs.tables import CostTable, Floats
from specflow.scheduling.allocation import Counts, allocate, causal_lengths
from specflow.scheduling.budget import pooled_budget
from specflow.scheduling.gate import Gate
from specflow.scheduling.lag import LAG_ROUNDS, REMEMBERED, LagQueue, Slot
from specflow.scheduling.limits import Limits

Mode = SchedulerMode
MODES = SCHEDULER_MODES


@dataclass(slots=True, kw_only=True)
class Planner:
    """``cost`` of a round less drafting; ``buckets``: the budget is raised to fill what would be computed anyway.

    ``evidence``: rounds of requests that a budget is formed on, at least; 1: the latest round of each alone.
    ``explore``: share of the time that requests may draft in to see whether it pays again; none: all draft, always.
    ``expected_M``: mean survival by position as known beforehand, for requests of which nothing is known. None: those
    count as certain, and while there is no earlier round everything is verified.
    """

    mode: Mode
    limits: Limits
    cost: CostTable | None = None
    drafting: DraftCost = field(default_factory=DraftCost)
    buckets: Buckets | None = None
    lag: int = LAG_ROUNDS
    evidence: int = 1
    explore: float | None = None
    expected_M: Floats | None = None
    _queue: LagQueue = field(init=False)
    _gate: Gate | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r}: expected one of {', '.join(MODES)}")
        if self.mode != "off" and self.cost is None:
            raise ValueError(f"mode {self.mode!r} needs a cost table: without one every row would be verified")
        if self.expected_M is not None and len(self.expected_M) != self.limits.num_proposals:
            raise ValueError(f"{len(self.expected_M)} expected survivals for {self.limits.num_proposals} proposals")
        if self.cost is not None:
            self.cost = Remembered(self.cost, most=self.limits.num_proposals + 1)
        self._queue = LagQueue(self.lag, unknown_M=self.expected_M)
        if self.mode != "off" and self.cost is not None and self.explore is not None:
            self._gate = Gate(
                cost=self.cost,
                drafting=self.drafting,
                num_proposals=self.limits.num_proposals,
                explore=self.explore,
                expected_M=self.expected_M,
            )

    def drafters(self, slots: Sequence[Slot]) -> list[bool]:
        """Which requests draft in this round; called before ``plan``, once per round."""
        return [True] * len(slots) if self._gate is None else self._gate.drafters(slots, self._queue)

    def plan(self, slots: Sequence[Slot], survival_RM: NDArray[np.float64] | None) -> Counts:
        """``[R]`` rows of this round; called once per round. No survival: every request in full.

        Rows of ``survival_RM`` that are not numbers: these requests drafted nothing, and have one row.
        """
        full = np.full(len(slots), self.limits.most, dtype=np.int64)
        if self.mode == "off" or self.cost is None:
            return full
        budgeted = self.mode == "lagged" and (self._queue.available() or self.expected_M is not None)
        pooled_WRM = self._pooled(slots, survival_RM) if budgeted else None
        self._queue.publish(slots, survival_RM)
        if survival_RM is None or not slots:
            return full
        drafted_R = ~np.isnan(survival_RM[:, 0])
        current_RM = np.where(drafted_R[:, None], survival_RM, 0.0)
        cost = _Whole(self.cost, self.drafting.seconds(int(drafted_R.sum())))
        if self.mode == "causal":
            rows = causal_lengths(current_RM, cost, self.limits, self.buckets)
        elif pooled_WRM is None:
            rows = full
        else:
            budget = pooled_budget(pooled_WRM, len(slots), cost).positions
            if self.buckets is not None:
                budget = self.buckets.filled(budget, requests=len(slots), most=int(drafted_R.sum()) * self._positions)
            rows = allocate(current_RM, budget, self.limits)
        return np.where(drafted_R, rows, 1)

    def silent(self, slots: Sequence[Slot]) -> None:
        """In place of ``plan`` for a round in which nobody drafts: nothing new is known after it."""
        self._queue.publish(slots, np.full((len(slots), self._positions), np.nan))

    @property
    def _positions(self) -> int:
        return self.limits.num_proposals

    def _pooled(self, slots: Sequence[Slot], survival_RM: NDArray[np.float64] | None) -> Floats | None:
        """``[W, R', M]`` earlier rounds of the requests that drafted."""
        if survival_RM is None:
            return None
        drafted = [slot for slot, row_M in zip(slots, survival_RM, strict=True) if not np.isnan(row_M[0])]
        count = min(max(1, -(-self.evidence // max(len(drafted), 1))), REMEMBERED)
        return self._queue.samples(drafted, self._positions, count)[:, :, : self.limits.most - 1]


@dataclass(frozen=True, slots=True)
class _Whole:
    """``further`` seconds whatever is verified: they do not move with rows, and make more rows worth while."""

    table: CostTable
    further: float

    def seconds(self, requests: int, rows: ArrayLike) -> Floats:
        return self.table.seconds(requests, rows) + self.further
