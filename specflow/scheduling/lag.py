"""Confidence of earlier rounds, as the host sees it: some rounds late, and only of requests that are still the same.

A slot that has been given to another request since has a new generation; what is known of it counts for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LAG_ROUNDS = 2

Floats = NDArray[np.float64]


class Slot(NamedTuple):
    """Where a request runs, and the how manieth request of that place it is."""

    place: int
    generation: int


class LagQueue:
    """``publish`` every round, what it proposed or that nothing arrived; ``lagged`` answers from ``lag`` rounds ago."""

    def __init__(self, lag: int = LAG_ROUNDS) -> None:
        if lag < 1:
            raise ValueError(f"a lag of {lag} rounds: expected at least 1, or a budget would see the round it is for")
        self._waiting: deque[tuple[dict[Slot, int], Floats] | None] = deque(maxlen=lag)
        self._lag = lag

    def publish(self, slots: Sequence[Slot], survival_RM: Floats | None) -> None:
        """The survival of this round; none: it did not arrive, for whatever reason."""
        if survival_RM is not None and len(survival_RM) != len(slots):
            raise ValueError(f"survival of {len(survival_RM)} requests, {len(slots)} are running")
        # A copy: the caller may use its buffer again.
        kept = None if survival_RM is None else ({slot: i for i, slot in enumerate(slots)}, survival_RM.copy())
        self._waiting.append(kept)

    def lagged(self, slots: Sequence[Slot], num_proposals: int) -> Floats | None:
        """``[R, M]`` of ``slots`` as of ``lag`` rounds ago, 1 where the request was another; none: not available."""
        snapshot = self._waiting[0] if len(self._waiting) == self._lag else None
        if snapshot is None:
            return None
        rows, survival_RM = snapshot
        with_unknown = np.concatenate((survival_RM, np.ones((1, num_proposals))))
        found: Floats = with_unknown[[rows.get(slot, -1) for slot in slots]]
        return found
