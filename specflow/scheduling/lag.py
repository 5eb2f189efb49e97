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

    index: int
    generation: int


class LagQueue:
    """``publish`` every round, what it proposed or that nothing arrived; ``lagged`` answers from ``lag`` rounds ago."""

    def __init__(self, lag: int = LAG_ROUNDS) -> None:
        if lag < 1:
            raise ValueError(f"a lag of {lag} rounds: expected at least 1, or a budget would see the round it is for")
        self._waiting: deque[dict[Slot, Floats] | None] = deque(maxlen=lag)
        self._lag = lag

    def publish(self, slots: Sequence[Slot], survival_RM: Floats | None) -> None:
        """The survival of this round; none: it did not arrive, for whatever reason."""
        if survival_RM is not None and len(survival_RM) != len(slots):
            raise ValueError(f"survival of {len(survival_RM)} requests, {len(slots)} are running")
        # A copy: the caller may use its buffer again.
        kept = None if survival_RM is None else {s: row.copy() for s, row in zip(slots, survival_RM, strict=True)}
        self._waiting.append(kept)

    def lagged(self, slots: Sequence[Slot], num_proposals: int) -> Floats | None:
        """``[R, M]`` of ``slots`` as of ``lag`` rounds ago, 1 where the request was another; none: not available."""
        snapshot = self._waiting[0] if len(self._waiting) == self._lag else None
        if snapshot is None:
            return None
        unknown = np.ones(num_proposals)
        return np.stack([snapshot.get(slot, unknown) for slot in slots]) if slots else np.ones((0, num_proposals))
