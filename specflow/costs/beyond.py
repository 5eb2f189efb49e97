"""Cost beyond what was measured, for predictions only: an engine's own table stays level there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specflow.costs.tables import AdditiveTable, Floats, RowTable


@dataclass(frozen=True, slots=True)
class Beyond:
    """``table``, going on beyond its last probes with the mean slope of their upper half."""

    table: RowTable | AdditiveTable

    def seconds(self, requests: int, rows: ArrayLike) -> Floats:
        table, wanted = self.table, np.asarray(rows, dtype=np.float64)
        found = table.seconds(requests, rows)
        if isinstance(table, RowTable):
            seconds = tuple(1.0 / rate for rate in table.rounds_per_second)
            return found + _further(table.rows, seconds, wanted)
        further = _further(table.requests, table.alpha_seconds, np.asarray(float(requests)))
        return found + further + _further(table.rows, table.theta_seconds, wanted)

    def measured(self, requests: int, rows: float) -> bool:
        """Whether the table's own probes reach so far."""
        table = self.table
        return rows <= table.rows[-1] and (isinstance(table, RowTable) or requests <= table.requests[-1])


def _further(probes: tuple[int, ...], seconds: tuple[float, ...], wanted: Floats) -> Floats:
    middle = len(probes) // 2
    if len(probes) < 2:
        return np.zeros_like(wanted)
    low = min(middle, len(probes) - 2)
    slope = (seconds[-1] - seconds[low]) / (probes[-1] - probes[low])
    return np.maximum(wanted - probes[-1], 0.0) * max(slope, 0.0)
