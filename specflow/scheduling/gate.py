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

from specflow.costs.drafting import DraftCost
from specflow.costs.tables import CostTable
from specflow.scheduling.budget import throughput
from specflow.scheduling.lag import Floats, LagQueue, Slot

CHOICES = 9
"""Numbers of drafting requests that are compared, evenly spread."""
REQUESTS_KEPT = 64
"""Requests, ended ones included, whose mean is expected of a request of which nothing is known."""
PRIOR_REQUESTS = 8
"""As many requests count what was known before."""


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
    _means: OrderedDict[Slot, Floats] = field(default_factory=OrderedDict)
    _silent: dict[Slot, int] = field(default_factory=dict)
    """Rounds since a request drafted last."""
    _allowance: float = 0.0
    """Seconds that exploring may take."""

    def drafters(self, slots: Sequence[Slot], known: LagQueue) -> list[bool]:
        """Of each request, whether it drafts in this round."""
        expected_RM = self._expected(slots, known)
        order = np.argsort(-expected_RM.sum(axis=1), kind="stable")
        chosen = self._best_count(expected_RM[order])
        drafts = np.zeros(len(slots), dtype=np.bool_)
        drafts[order[:chosen]] = True
        self._explore(slots, drafts)
        self._silent = {s: 0 if d else self._silent.get(s, 0) + 1 for s, d in zip(slots, drafts, strict=True)}
        return [bool(value) for value in drafts]

    def _expected(self, slots: Sequence[Slot], known: LagQueue) -> Floats:
        """``[R, M]`` mean survival: the request's own, or that of all requests, or 1 where nothing is known yet."""
        own = [known.mean(slot) for slot in slots]
        for slot, mean_M in zip(slots, own, strict=True):
            if mean_M is not None:
                self._means[slot] = mean_M
        while len(self._means) > max(REQUESTS_KEPT, len(slots)):
            self._means.popitem(last=False)
        others_M = self._others() if any(mean_M is None for mean_M in own) else None
        return np.array([others_M if mean_M is None else mean_M for mean_M in own])

    def _others(self) -> Floats:
        known = list(self._means.values())
        total_M = np.sum(known, axis=0) if known else np.zeros(self.num_proposals)
        if self.expected_M is None:
            return total_M / len(known) if known else np.ones(self.num_proposals)
        mean_M: Floats = (total_M + PRIOR_REQUESTS * self.expected_M) / (len(known) + PRIOR_REQUESTS)
        return mean_M

    def _best_count(self, sorted_RM: Floats) -> int:
        """How many of the first requests draft, for the most tokens per second; of equal ones the fewest."""
        requests = len(sorted_RM)
        counts = _choices(requests)
        rates = []
        for count in counts:
            found, seconds = throughput(np.sort(sorted_RM[:count].reshape(-1))[::-1], requests, self.cost)
            rates.append(float((found * seconds / (seconds + self.drafting.seconds(count))).max()))
        return counts[int(np.argmax(rates))]

    def _explore(self, slots: Sequence[Slot], drafts: np.ndarray) -> None:
        """Let those that have been silent longest draft too, as far as the allowance goes."""
        requests = len(slots)
        self._allowance += self.explore * float(self.cost.seconds(requests, requests))
        for r in sorted(np.flatnonzero(~drafts).tolist(), key=lambda r: -self._silent.get(slots[r], 0)):
            drafting = int(drafts.sum())
            price = self.drafting.seconds(drafting + 1) - self.drafting.seconds(drafting)
            if price > self._allowance:
                return
            self._allowance -= price
            drafts[r] = True


@cache
def _choices(requests: int) -> tuple[int, ...]:
    steps = min(CHOICES, requests + 1) - 1
    return tuple(sorted({round(requests * step / steps) for step in range(steps + 1)}))
