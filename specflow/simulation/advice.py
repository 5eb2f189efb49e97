"""Which drafter, how many proposals and which scheduler to use at a load, and what to expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specflow.simulation.load import Load
from specflow.simulation.policy import PLAIN, Policy, policies_of
from specflow.simulation.predict import Evidence, break_even_of, predict
from specflow.simulation.simulator import Outcome

SIMPLER_WITHIN = 0.01
"""An option that is simpler and at most this much slower is preferred."""
CURVE = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    drafter: str | None
    policy: Policy
    outcome: Outcome
    gain: float
    """Over plain decoding at the same load."""
    measured: bool
    """Whether the cost table reaches so far."""

    def as_json(self) -> dict[str, Any]:
        return {
            "drafter": self.drafter,
            "policy": self.policy.kind,
            "verified_proposals": self.policy.length if self.policy.kind == "fixed" else None,
            "tokens_per_second": self.outcome.tokens_per_second,
            "times_plain": self.gain,
            "tau": self.outcome.tokens_per_round,
            "rows_per_request": self.outcome.rows_per_request,
            "seconds_per_request": self.outcome.seconds_per_request,
            "measured": self.measured,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    load: Load
    best: Option
    options: tuple[Option, ...]
    """Plain decoding, then each drafter's, the simplest first."""
    break_even: dict[str, dict[str, int | None]]
    """By drafter and policy: the largest concurrency in a closed loop at which it is faster than plain decoding."""
    curve: tuple[dict[str, Any], ...]
    """The best at other concurrencies, in a closed loop."""


def advise(found: Sequence[Evidence], load: Load, *, curve: Sequence[int] = CURVE) -> Advice:
    """Raises ``ValueError`` without evidence."""
    if not found:
        raise ValueError("nothing to compare: expected the rounds of at least one drafter")
    options = options_at(found, load)
    best = best_of(options)
    return Advice(
        load=load,
        best=best,
        options=tuple(options),
        break_even={e.name: break_even_of(e, _shown(e, options)) for e in found},
        curve=tuple({"concurrency": c, **best_of(options_at(found, Load(concurrency=c))).as_json()} for c in curve),
    )


def options_at(found: Sequence[Evidence], load: Load) -> list[Option]:
    """Everything that can be done at a load."""
    plains = [predict(evidence, PLAIN, load) for evidence in found]
    options = [_option(None, found[0], PLAIN, plains[0], plains[0], load)]
    for evidence, plain in zip(found, plains, strict=True):
        confident = evidence.traces.survival_NM is not None
        for policy in policies_of(evidence.traces.num_proposals, confident=confident):
            outcome = predict(evidence, policy, load)
            options += [_option(evidence.name, evidence, policy, outcome, plain, load)]
    return options


def best_of(options: Sequence[Option]) -> Option:
    """The fastest, or the first in order that is nearly as fast; under random arrivals the one with the least delay."""

    def cost(option: Option) -> float:
        delay = option.outcome.seconds_per_request
        return delay if delay is not None else 1.0 / option.outcome.tokens_per_second

    least = min(map(cost, options))
    return next(option for option in options if cost(option) <= least * (1.0 + SIMPLER_WITHIN))


def _option(
    name: str | None, evidence: Evidence, policy: Policy, outcome: Outcome, plain: Outcome, load: Load
) -> Option:
    rows = outcome.running * outcome.rows_per_request
    return Option(
        drafter=name,
        policy=policy,
        outcome=outcome,
        gain=outcome.tokens_per_second / plain.tokens_per_second,
        measured=evidence.cost_of(policy).measured(load.concurrency, rows),
    )


def _shown(evidence: Evidence, options: Sequence[Option]) -> list[Policy]:
    """The schedulers, the full length, and the fixed length that is best at this load."""
    own = [o for o in options if o.drafter == evidence.name]
    fixed = [o for o in own if o.policy.kind == "fixed"]
    best = max(fixed, key=lambda o: o.outcome.tokens_per_second).policy
    return list(dict.fromkeys([best, fixed[-1].policy, *(o.policy for o in own if o.policy.scheduled)]))
