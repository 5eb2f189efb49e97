"""Tokens per second of a policy under a load, and the load up to which it pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specflow.simulation.costs import RoundCost
from specflow.simulation.load import Load
from specflow.simulation.policy import PLAIN, Policy
from specflow.simulation.simulator import Outcome, simulate
from specflow.simulation.traces import Traces

REQUEST_ROUNDS, FEWEST_ROUNDS, MOST_ROUNDS = 8000, 120, 1500
"""A prediction replays so many rounds of requests, in so many rounds of the engine."""
LARGEST = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a prediction of one drafter needs. ``plain``: the same engine without it."""

    name: str
    traces: Traces
    cost: RoundCost
    plain: RoundCost
    prefill_seconds: float = 0.0
    """Per request."""

    def cost_of(self, policy: Policy) -> RoundCost:
        return self.plain if policy.kind == "plain" else self.cost


def predict(evidence: Evidence, policy: Policy, load: Load, *, seed: int = 0) -> Outcome:
    """By formula where that is exact (a closed loop with fixed lengths), else by simulation."""
    if policy.scheduled or load.rate is not None:
        rounds = min(MOST_ROUNDS, max(FEWEST_ROUNDS, REQUEST_ROUNDS // load.concurrency))
        cost = evidence.cost_of(policy)
        return simulate(
            evidence.traces, policy, load, cost, rounds=rounds, prefill_seconds=evidence.prefill_seconds, seed=seed
        )
    requests, rows = load.concurrency, policy.length + 1
    tokens = evidence.traces.mean_tokens(policy.length)
    seconds = float(evidence.cost_of(policy).seconds(requests, requests * rows))
    per_request = float(evidence.traces.tokens_Q.mean())
    # Every request is prefilled once, while the others wait.
    seconds += evidence.prefill_seconds * requests * tokens / per_request
    return Outcome(
        tokens_per_second=requests * tokens / seconds,
        tokens_per_round=tokens,
        rows_per_request=float(rows),
        running=float(requests),
        seconds_per_request=None,
    )


def break_even(gain: Callable[[int], float], *, largest: int = LARGEST) -> int | None:
    """Largest concurrency with ``gain`` above 1, found on powers of 2 and by halving; none: it never pays.

    ``largest`` where it pays there, which means: at least. Between the last power of 2 that pays and the next, which
    does not, ``gain`` is taken to fall.
    """
    powers = [2**k for k in range(largest.bit_length()) if 2**k <= largest]
    paying = [c for c in powers if gain(c) > 1.0]
    if not paying:
        return None
    low: int = paying[-1]
    high = min(2 * low, largest)
    if low == powers[-1] and (low == largest or gain(largest) > 1.0):
        return largest
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if gain(middle) > 1.0 else (low, middle)
    return low


def break_even_of(evidence: Evidence, policies: Sequence[Policy]) -> dict[str, int | None]:
    """By the policy's name."""

    def gain(policy: Policy, concurrency: int) -> float:
        load = Load(concurrency=concurrency)
        plain = predict(evidence, PLAIN, load).tokens_per_second
        return predict(evidence, policy, load).tokens_per_second / plain

    return {policy.name: break_even(lambda c, p=policy: gain(p, c)) for policy in policies}  # type: ignore[misc]
