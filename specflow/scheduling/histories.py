"""The last survivals of every running request, kept in arrays so that hundreds of requests cost little per round.

Legend: S places, H rounds that are kept, M proposals, R requests asked for.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


class Histories:
    """Rows by key; ``kept`` of each at most."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._place: dict[Hashable, int] = {}
        self._free: list[int] = []
        self._rows_SHM = np.empty((0, kept, 0))
        self._sums_SM = np.empty((0, 0))
        self._counts_S = np.empty(0, dtype=np.int64)
        self.version = 0
        """Changes with every row that is added."""

    def keep_only(self, keys: AbstractSet[Hashable]) -> None:
        for key in [key for key in self._place if key not in keys]:
            self._free.append(self._place.pop(key))

    def add(self, keys: Sequence[Hashable], rows_RM: Floats) -> None:
        """One more row of each, in place of its oldest where all are kept."""
        if not len(keys):
            return
        self.version += 1
        places_R = np.array([self._place_of(key, rows_RM.shape[1]) for key in keys])
        counts_R = self._counts_S[places_R]
        slots_R = counts_R % self._kept
        full_R1 = (counts_R >= self._kept)[:, None]
        self._sums_SM[places_R] += rows_RM - np.where(full_R1, self._rows_SHM[places_R, slots_R], 0.0)
        self._rows_SHM[places_R, slots_R] = rows_RM
        self._counts_S[places_R] += 1

    def newest(self, keys: Sequence[Hashable], count: int, unknown_M: Floats) -> Floats:
        """``[count, R, M]``: the newest first, from the newest again where fewer are known; others ``unknown_M``."""
        found = np.empty((count, len(keys), len(unknown_M)))
        found[:] = unknown_M
        known_R, places_R = self._known(keys)
        if len(places_R):
            counts_R = self._counts_S[places_R]
            back_WR = np.arange(count)[:, None] % np.minimum(counts_R, self._kept)
            found[:, known_R] = self._rows_SHM[places_R, (counts_R - 1 - back_WR) % self._kept]
        return found

    def sums(self, keys: Sequence[Hashable]) -> tuple[Indices, Floats, Indices]:
        """Which of ``keys`` are known, and of each of those the sum of its rows and their number."""
        known_R, places_R = self._known(keys)
        return known_R, self._sums_SM[places_R], np.minimum(self._counts_S[places_R], self._kept)

    def _known(self, keys: Sequence[Hashable]) -> tuple[Indices, Indices]:
        places_R = np.array([self._place.get(key, -1) for key in keys], dtype=np.int64)
        known_R = np.flatnonzero(places_R >= 0)
        return known_R, places_R[known_R]

    def _place_of(self, key: Hashable, width: int) -> int:
        if key not in self._place:
            if not self._free:
                self._grow(width)
            place = self._place[key] = self._free.pop()
            self._counts_S[place], self._sums_SM[place] = 0, 0.0
        return self._place[key]

    def _grow(self, width: int) -> None:
        more, before = max(8, len(self._counts_S)), len(self._counts_S)
        self._free = [*range(before + more - 1, before - 1, -1)]
        self._rows_SHM = np.concatenate(
            (self._rows_SHM.reshape(before, self._kept, width), np.zeros((more, self._kept, width)))
        )
        self._sums_SM = np.concatenate((self._sums_SM.reshape(before, width), np.zeros((more, width))))
        self._counts_S = np.concatenate((self._counts_S, np.zeros(more, dtype=np.int64)))
