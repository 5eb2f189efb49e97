"""The scheduler of one decoding engine: what it is set to, and a fresh plan for every batch of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from specflow.config.scheduler import SchedulerParams
from specflow.costs.buckets import Buckets
from specflow.costs.drafting import DraftCost
from specflow.costs.tables import CostTable
from specflow.scheduling.lag import Slot
from specflow.scheduling.limits import Limits
from specflow.scheduling.planner import Planner
from specflow.scheduling.survival import survival_of

Logits = Sequence[float] | None
"""Raw confidence of one request's proposals; none: it drafted nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """Raises ``ValueError`` where a mode needs costs and there are none, or temperatures do not fit.

    ``cost`` of a target pass with all that comes with it, less ``drafting``. ``temperatures``: of the confidence.
    ``expected``: mean survival by position, for requests of which nothing is known yet; none: they count as certain.
    """

    params: SchedulerParams
    num_proposals: int
    cost: CostTable | None = None
    drafting: DraftCost = field(default_factory=DraftCost)
    temperatures: Sequence[float] | None = None
    expected: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.temperatures is not None and len(self.temperatures) != self.num_proposals:
            raise ValueError(f"{len(self.temperatures)} temperatures for {self.num_proposals} proposals")
        self.begin()

    @property
    def active(self) -> bool:
        return self.params.mode != "off"

    def begin(self) -> Schedule:
        """For a new batch of requests, which know nothing of earlier ones."""
        expected_M = None if self.expected is None else np.asarray(self.expected, dtype=np.float64)
        planner = planner_of(
            self.params, self.num_proposals, cost=self.cost, drafting=self.drafting, expected_M=expected_M
        )
        return Schedule(planner, self.num_proposals, self.temperatures)


def planner_of(
    params: SchedulerParams,
    num_proposals: int,
    *,
    cost: CostTable | None,
    drafting: DraftCost,
    expected_M: NDArray[np.float64] | None = None,
) -> Planner:
    """As configured."""
    return Planner(
        mode=params.mode,
        limits=Limits(num_proposals=num_proposals, shortest=params.shortest, longest=params.longest),
        cost=cost,
        drafting=drafting,
        buckets=None if params.buckets is None else Buckets(params.buckets),
        lag=params.lag,
        evidence=params.evidence,
        explore=params.explore,
        expected_M=expected_M,
    )


class Schedule:
    """Round after round: which requests draft, then how many rows each gets. ``seconds``: what that took so far."""

    def __init__(self, planner: Planner, num_proposals: int, temperatures: Sequence[float] | None) -> None:
        self._planner, self._num_proposals, self._temperatures = planner, num_proposals, temperatures
        self.seconds = 0.0

    def drafters(self, requests: Sequence[int]) -> list[bool]:
        """``requests``: numbers of the running ones, which no other request of the batch has had."""
        begin = perf_counter()
        found = self._planner.drafters([Slot(number, 0) for number in requests])
        self.seconds += perf_counter() - begin
        return found

    def silent(self, requests: Sequence[int]) -> None:
        """In place of ``rows`` where nobody drafts: every request has its anchor's."""
        begin = perf_counter()
        self._planner.silent([Slot(number, 0) for number in requests])
        self.seconds += perf_counter() - begin

    def rows(self, requests: Sequence[int], confidence: Sequence[Logits]) -> list[int]:
        """Rows of each request, the anchor's included; in the order of ``drafters``, once per round."""
        begin = perf_counter()
        logits_RM = [[np.nan] * self._num_proposals if own is None else own for own in confidence]
        survival_RM = survival_of(logits_RM, self._temperatures)
        found = self._planner.plan([Slot(number, 0) for number in requests], survival_RM)
        self.seconds += perf_counter() - begin
        rows: list[int] = found.tolist()
        return rows
