"""Which requests draft at all in a round: drafting costs time too, and where rows are dear no proposal earns it back.

Decided before anything is drafted, from earlier rounds alone, so no token of the round takes part. A request that has
not drafted for long is asked again now and then, for a share of the time that is known in advance.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from specflow.costs.drafting import DraftCost
from specflow.costs.tables import CostTable
from specflow.scheduling.histories import Floats
from specflow.scheduling.lag import LagQueue, Slot

CHOICES = 9
"""Numbers of drafting requests that are compared, evenly spread."""
REQUESTS_KEPT = 64
"""Requests, ended ones included, whose mean is expected of a request of which nothing is known."""
PRIOR_REQUESTS = 8
"""As many requests count what was known before."""
PRIOR_ROUNDS = 8
"""As many rounds of its own a request counts what is expected of all."""


@dataclass(slots=True, kw_only=True)
class Gate:
    """``cost`` of a round without drafting; ``explore``: share of the time for requests that do not draft.

    ``expected_M``: mean survival as known beforehand; none: 1 until there is a round.
    """

    cost: CostTable
    drafting: DraftCost
    num_proposals: int
    explore: float
    expected_M: Floats | None = None
    _means: OrderedDict[Slot, tuple[Floats, float]] = field(default_factory=OrderedDict)
    """Of a request, and its weight: that of a whole one from ``PRIOR_ROUNDS`` rounds on."""
    _silent: dict[Slot, int] = field(default_factory=dict)
    """Rounds since a request drafted last."""
    _decided: tuple[int, list[Slot], NDArray[np.bool_]] | None = None
    """Last, and what it was decided on."""
    _allowance: float = 0.0
    """Seconds that exploring may take."""

    def drafters(self, slots: Sequence[Slot], known: LagQueue) -> list[bool]:
        """Of each request, whether it drafts in this round."""
        # While nobody drafts nothing new is known, and the answer stays.
        if self._decided is None or self._decided[:2] != (known.version, list(slots)):
            self._decided = (known.version, list(slots), self._decide(slots, known))
        drafts = self._decided[2].copy()
        self._explore(slots, drafts)
        self._silent = {s: 0 if d else self._silent.get(s, 0) + 1 for s, d in zip(slots, drafts, strict=True)}
        return [bool(value) for value in drafts]

    def _decide(self, slots: Sequence[Slot], known: LagQueue) -> NDArray[np.bool_]:
        """Exploring left out."""
        expected_RM = self._expected(slots, known)
        order = np.argsort(-expected_RM.sum(axis=1), kind="stable")
        drafts = np.zeros(len(slots), dtype=np.bool_)
        drafts[order[: self._best_count(expected_RM[order])]] = True
        return drafts

    def _expected(self, slots: Sequence[Slot], known: LagQueue) -> Floats:
        """``[R, M]`` mean survival: that of all requests, and with every round that is known more the request's own."""
        known_R, sums_RM, counts_R = known.sums(slots)
        if len(known_R):
            means_RM = sums_RM / counts_R[:, None]
            weights = np.minimum(counts_R / PRIOR_ROUNDS, 1.0).tolist()
            self._means.update(zip([slots[r] for r in known_R], zip(means_RM, weights, strict=True), strict=True))
            while len(self._means) > max(REQUESTS_KEPT, len(slots)):
                self._means.popitem(last=False)
        others_M = self._others()
        expected_RM = np.tile(others_M, (len(slots), 1))
        if len(known_R):
            # A request that had bad luck once must not be silent for ever.
            expected_RM[known_R] = (sums_RM + PRIOR_ROUNDS * others_M) / (counts_R + PRIOR_ROUNDS)[:, None]
        return expected_RM

    def _others(self) -> Floats:
        total_M, weight = np.zeros(self.num_proposals), 0.0
        if self._means:
            means, weights = zip(*self._means.values(), strict=True)
            total_M, weight = np.dot(weights, np.array(means)), sum(weights)
        if self.expected_M is not None:
            total_M, weight = total_M + PRIOR_REQUESTS * self.expected_M, weight + PRIOR_REQUESTS
        return total_M / weight if weight else np.ones(self.num_proposals)

    def _best_count(self, sorted_RM: Floats) -> int:
        """How many of the first requests draft, for the most tokens per second; of equal ones the fewest."""
        requests, positions = sorted_RM.shape
        counts_C = np.array(_choices(requests))
        flat_K = sorted_RM.reshape(-1)
        order_K = np.argsort(-flat_K)
        # All choices at once: of the positions in order, those of requests that draft.
        drafted_CK = order_K // positions < counts_C[:, None]
        rows_CK = requests + np.cumsum(drafted_CK, axis=1)
        tokens_CK = requests + np.cumsum(np.where(drafted_CK, flat_K[order_K], 0.0), axis=1)
        drafting_C = np.array([self.drafting.seconds(count) for count in _choices(requests)])
        rates_CK = tokens_CK / (self.cost.seconds(requests, rows_CK) + drafting_C[:, None])
        # Who drafts may still be granted nothing.
        none_C = requests / (float(self.cost.seconds(requests, requests)) + drafting_C)
        return int(counts_C[int(np.argmax(np.maximum(rates_CK.max(axis=1), none_C)))])

    def _explore(self, slots: Sequence[Slot], drafts: NDArray[np.bool_]) -> None:
        """Let those that have been silent longest draft too, as far as the allowance goes."""
        requests = len(slots)
        self._allowance += self.explore * float(self.cost.seconds(requests, requests))
        if drafts.all() or self._price(drafts) > self._allowance:
            return
        for r in sorted(np.flatnonzero(~drafts).tolist(), key=lambda r: -self._silent.get(slots[r], 0)):
            price = self._price(drafts)
            if price > self._allowance:
                return
            self._allowance -= price
            drafts[r] = True

    def _price(self, drafts: NDArray[np.bool_]) -> float:
        """Seconds for one more that drafts."""
        drafting = int(drafts.sum())
        return self.drafting.seconds(drafting + 1) - self.drafting.seconds(drafting)


@cache
def _choices(requests: int) -> tuple[int, ...]:
    steps = min(CHOICES, requests + 1) - 1
    return tuple(sorted({round(requests * step / steps) for step in range(steps + 1)}))
