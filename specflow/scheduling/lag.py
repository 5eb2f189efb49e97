"""Confidence of earlier rounds, as the host sees it: some rounds late, and only of requests that are still the same.

A slot that has been given to another request since has a new generation; what is known of it counts for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specflow.scheduling.histories import Floats, Histories, Indices

LAG_ROUNDS = 2
REMEMBERED = 32
"""Rounds of a request that are kept."""


class Slot(NamedTuple):
    """Where a request runs, and the how manieth request of that place it is."""

    place: int
    generation: int


class LagQueue:
    """``publish`` every round, what it proposed or that nothing arrived; the others answer from ``lag`` rounds ago.

    A row that is not a number: that request drafted nothing.
    """

    def __init__(self, lag: int = LAG_ROUNDS, *, unknown_M: Floats | None = None) -> None:
        """``unknown_M``: taken of requests of which nothing is known; none: 1."""
        if lag < 1:
            raise ValueError(f"a lag of {lag} rounds: expected at least 1, or a budget would see the round it is for")
        self._waiting: deque[tuple[list[Slot], Floats] | None] = deque(maxlen=lag)
        self._lag, self._unknown_M = lag, unknown_M
        self._remembered: Histories = Histories(REMEMBERED)

    def publish(self, slots: Sequence[Slot], survival_RM: Floats | None) -> None:
        """The survival of this round; none: it did not arrive, for whatever reason."""
        if survival_RM is not None and len(survival_RM) != len(slots):
            raise ValueError(f"survival of {len(survival_RM)} requests, {len(slots)} are running")
        # A copy: the caller may use its buffer again.
        self._waiting.append(None if survival_RM is None else (list(slots), survival_RM.copy()))
        if len(self._waiting) == self._lag and self._waiting[0] is not None:
            self._remember(*self._waiting[0], running=set(slots))

    def available(self) -> bool:
        """Whether the round ``lag`` rounds ago has arrived."""
        return len(self._waiting) == self._lag and self._waiting[0] is not None

    def lagged(self, slots: Sequence[Slot], num_proposals: int) -> Floats | None:
        """``[R, M]`` of ``slots`` as of ``lag`` rounds ago, or unknown; none: nothing came."""
        return None if not self.available() else self.samples(slots, num_proposals, 1)[0]

    def samples(self, slots: Sequence[Slot], num_proposals: int, count: int) -> Floats:
        """``[count, R, M]``: of each request the last rounds up to ``lag`` rounds ago, the newest first.

        Taken again from the newest where fewer are known.
        """
        return self._remembered.newest(
            slots, count, np.ones(num_proposals) if self._unknown_M is None else self._unknown_M
        )

    @property
    def version(self) -> int:
        """The same as long as nothing new is remembered of any request."""
        return self._remembered.version

    def sums(self, slots: Sequence[Slot]) -> tuple[Indices, Floats, Indices]:
        """Which of ``slots`` are known, and of those ``[., M]`` the sum of what is remembered, and of how many."""
        return self._remembered.sums(slots)

    def _remember(self, slots: Sequence[Slot], survival_RM: Floats, *, running: set[Slot]) -> None:
        self._remembered.keep_only(running)
        there = [r for r, slot in enumerate(slots) if slot in running and not np.isnan(survival_RM[r, 0])]
        self._remembered.add([slots[r] for r in there], survival_RM[there])
