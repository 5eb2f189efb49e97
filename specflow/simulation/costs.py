"""The cost of a whole round: the measured pass, and what the engine does beside it for every request."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import ArrayLike

from specflow.costs.beyond import Beyond
from specflow.costs.tables import AdditiveTable, Floats, RowTable


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCost:
    """``seconds_per_request``: drafting, committing and bookkeeping, one request after the other."""

    table: RowTable | AdditiveTable
    seconds_per_request: float = 0.0

    def seconds(self, requests: int, rows: ArrayLike) -> Floats:
        return Beyond(self.table).seconds(requests, rows) + requests * self.seconds_per_request

    def measured(self, requests: int, rows: float) -> bool:
        """Whether the table reaches so far, or goes on by its slope."""
        return Beyond(self.table).measured(requests, rows)
