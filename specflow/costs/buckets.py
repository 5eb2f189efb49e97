"""Sizes that an engine rounds a pass up to (captured graphs): the cost is a step function of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specflow.costs.tables import CostTable, Floats


@dataclass(frozen=True, slots=True)
class Buckets:
    """``sizes``: increasing numbers of rows; a pass beyond the last is run as it is."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or list(self.sizes) != sorted(set(self.sizes)) or self.sizes[0] < 1:
            raise ValueError(f"buckets {self.sizes}: expected increasing whole numbers from 1")

    def padded(self, rows: ArrayLike) -> NDArray[np.int64]:
        """Rows that the engine really runs."""
        wanted = np.asarray(rows, dtype=np.int64)
        place = np.searchsorted(self.sizes, wanted)
        sizes = np.append(np.asarray(self.sizes, dtype=np.int64), 0)
        return np.where(place < len(self.sizes), sizes[place], wanted)

    def filled(self, budget: int, *, requests: int, most: int) -> int:
        """The budget that fills the bucket of ``requests + budget`` rows, which costs nothing; at most ``most``."""
        return min(most, int(self.padded(requests + budget)) - requests)


def captured_sizes(batches: tuple[int, ...], num_proposals: int) -> Buckets:
    """Those of an engine that captures ``batches`` requests verified in full."""
    return Buckets(tuple(sorted({batch * (num_proposals + 1) for batch in batches})))


@dataclass(frozen=True, slots=True)
class Bucketed:
    """A table whose passes are rounded up."""

    table: CostTable
    buckets: Buckets

    def seconds(self, requests: int, rows: ArrayLike) -> Floats:
        return self.table.seconds(requests, self.buckets.padded(rows))
