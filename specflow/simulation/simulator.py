"""Rounds of many requests side by side, in the order an engine with continuous slots runs them.

A request replays its own rounds in order, again from the first where a cut made it need more. What a cut round would
have proposed next is not known, so the next recorded round stands in for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specflow.costs.buckets import Buckets
from specflow.simulation.costs import RoundCost
from specflow.simulation.load import Arrivals, Load
from specflow.simulation.policy import Lengths, Policy
from specflow.simulation.traces import Traces

WARM_UP = 0.2
"""Share of the rounds that is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    tokens_per_second: float
    tokens_per_round: float
    """Per request and round: tau."""
    rows_per_request: float
    running: float
    """Mean number of requests in a round."""
    seconds_per_request: float | None
    """From arrival to the last token, waiting included; none in a closed loop, where nothing waits."""


def simulate(
    traces: Traces,
    policy: Policy,
    load: Load,
    cost: RoundCost,
    *,
    rounds: int,
    prefill_seconds: float = 0.0,
    buckets: Buckets | None = None,
    seed: int = 0,
) -> Outcome:
    """``cost`` of a whole round, drafting included. ``prefill_seconds``: a new request holds up the others so long.

    Raises ``ValueError`` on a scheduler without confidence.
    """
    if policy.scheduled and traces.survival_NM is None:
        raise ValueError(f"{policy.name}: these rounds have no confidence to schedule by")
    return _Run(traces, policy, load, cost, prefill_seconds, buckets, seed).run(rounds)


def simulate_wave(
    traces: Traces, policy: Policy, concurrency: int, cost: RoundCost, *, prefill_seconds: float = 0.0
) -> Outcome:
    """Every request of ``traces`` once, in order, ``concurrency`` at a time, from the first to the end of the last."""
    if policy.scheduled and traces.survival_NM is None:
        raise ValueError(f"{policy.name}: these rounds have no confidence to schedule by")
    return _Run(traces, policy, Load(concurrency=concurrency), cost, prefill_seconds, None, 0).once()


class _Run:
    def __init__(
        self,
        traces: Traces,
        policy: Policy,
        load: Load,
        cost: RoundCost,
        prefill_seconds: float,
        buckets: Buckets | None,
        seed: int,
    ) -> None:
        self._traces, self._load, self._cost, self._prefill = traces, load, cost, prefill_seconds
        self._lengths = Lengths(policy, traces.num_proposals, cost, buckets, traces.mean_survival_M())
        self._plain = policy.kind == "plain"
        self._arrivals = Arrivals(load, seed)
        self._random = np.random.default_rng((seed, 0))
        size = load.concurrency
        self._request, self._round, self._left = (np.zeros(size, dtype=np.int64) for _ in range(3))
        self._arrived = np.zeros(size)
        self._generation = np.zeros(size, dtype=np.int64)
        self._busy = np.zeros(size, dtype=np.bool_)
        self._deck: list[int] = []
        self._endless = True
        self._counted = 0
        self._clock = 0.0
        self._lived: list[float] = []

    def run(self, rounds: int) -> Outcome:
        begin = int(WARM_UP * rounds)
        tokens = requests = rows = 0
        started = 0.0
        for number in range(rounds):
            if number == begin:
                started, tokens, requests, rows = self._clock, 0, 0, 0
                self._lived.clear()
            self._admit(first=number == 0)
            delivered, verified = self._step()
            tokens, rows, requests = tokens + delivered, rows + verified, requests + self._counted
        counted = rounds - begin
        return Outcome(
            tokens_per_second=tokens / (self._clock - started),
            tokens_per_round=tokens / requests,
            rows_per_request=rows / requests,
            running=requests / counted,
            seconds_per_request=float(np.mean(self._lived)) if self._load.rate and self._lived else None,
        )

    def once(self) -> Outcome:
        """Every request one time, in order, until the last has ended."""
        self._deck, self._endless = list(range(len(self._traces.first_Q)))[::-1], False
        tokens = requests = rows = rounds = 0
        while True:
            self._admit(first=False)
            if not self._busy.any():
                break
            delivered, verified = self._step()
            tokens, rows, requests, rounds = tokens + delivered, rows + verified, requests + self._counted, rounds + 1
        return Outcome(
            tokens_per_second=tokens / self._clock,
            tokens_per_round=tokens / requests,
            rows_per_request=rows / requests,
            running=requests / rounds,
            seconds_per_request=None,
        )

    def _admit(self, *, first: bool) -> None:
        """Requests that are there go into free slots; where nothing runs, time passes to the next arrival."""
        if not self._busy.any():
            self._clock = max(self._clock, self._arrivals.next)
        for slot in np.flatnonzero(~self._busy):
            if self._arrivals.next > self._clock or not (self._deck or self._endless):
                return
            q = self._draw()
            self._busy[slot], self._request[slot], self._round[slot] = True, q, 0
            self._left[slot] = self._traces.tokens_Q[q]
            self._generation[slot] += 1
            self._arrived[slot] = self._arrivals.take()
            if first and self._load.rate is None:
                # As after a long time: requests are anywhere in their answers, not all at the start.
                self._round[slot] = self._random.integers(self._traces.rounds_Q[q])
                self._left[slot] = self._random.integers(self._left[slot]) + 1
            else:
                self._clock += self._prefill

    def _draw(self) -> int:
        """Every request once in a random order, then again: so a short run has the same mix as a long one."""
        if not self._deck:
            self._deck = self._random.permutation(len(self._traces.first_Q)).tolist()
        return self._deck.pop()

    def _step(self) -> tuple[int, int]:
        """One round of all running requests: tokens delivered and rows verified."""
        slots, traces = np.flatnonzero(self._busy), self._traces
        rounds = traces.first_Q[self._request[slots]] + self._round[slots]
        drafting = self._lengths.drafters(slots, self._generation[slots])
        survival = None if traces.survival_NM is None or self._plain else traces.survival_NM[rounds]
        if survival is not None:
            survival[~drafting] = np.nan
        lengths = self._lengths.next(slots, self._generation[slots], survival)
        committed = np.minimum(traces.accepted_N[rounds], lengths - 1) + 1
        delivered = np.minimum(committed, self._left[slots])
        verified = int(lengths.sum())
        self._counted = len(slots)
        self._clock += float(self._cost.seconds(len(slots), verified, drafting=int(drafting.sum())))
        self._left[slots] -= delivered
        self._round[slots] = (self._round[slots] + 1) % traces.rounds_Q[self._request[slots]]
        ended = slots[self._left[slots] <= 0]
        self._busy[ended] = False
        self._lived += [self._clock - moment for moment in self._arrived[ended].tolist()]
        return int(delivered.sum()), verified
