"""The cost of a whole round: the measured pass, and what the engine does beside it for every request."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from numpy.typing import ArrayLike

from specflow.costs.beyond import Beyond
from specflow.costs.drafting import DraftCost
from specflow.costs.tables import AdditiveTable, Floats, RowTable


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCost:
    """``drafting``, and ``seconds_per_request``: what else the engine does for every request, one after the other."""

    table: RowTable | AdditiveTable
    seconds_per_request: float = 0.0
    drafting: DraftCost = field(default_factory=DraftCost)

    def seconds(self, requests: int, rows: ArrayLike, *, drafting: int | None = None) -> Floats:
        """``drafting``: requests that draft; none: all."""
        beside = requests * self.seconds_per_request + self.drafting.seconds(requests if drafting is None else drafting)
        return Beyond(self.table).seconds(requests, rows) + beside

    def without_drafting(self) -> RoundCost:
        return replace(self, drafting=DraftCost())

    def measured(self, requests: int, rows: float) -> bool:
        """Whether the table reaches so far, or goes on by its slope."""
        return Beyond(self.table).measured(requests, rows)
