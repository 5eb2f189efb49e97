"""A cost table that is asked again and again in every round: the seconds of a number of requests are computed once."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from specflow.costs.tables import CostTable, Floats


class Remembered:
    """``table`` for whole numbers of rows, up to ``most`` of each request; beyond, the table itself answers."""

    def __init__(self, table: CostTable, *, most: int) -> None:
        self._table, self._most = table, most
        self._known: dict[int, Floats] = {}

    def seconds(self, requests: int, rows: ArrayLike) -> Floats:
        asked = np.asarray(rows)
        if asked.dtype.kind != "i" or (asked.size and int(asked.max()) > requests * self._most):
            return self._table.seconds(requests, rows)
        known = self._known.get(requests)
        if known is None:
            known = self._known[requests] = self._table.seconds(requests, np.arange(requests * self._most + 1))
        found: Floats = known[asked]
        return found
