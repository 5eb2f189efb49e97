"""The simulator against replays written out by hand, and against formulas where they are exact."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from specflow.costs.buckets import Buckets
from specflow.costs.tables import AdditiveTable
from specflow.simulation.costs import RoundCost
from specflow.simulation.load import Arrivals, Load
from specflow.simulation.policy import PLAIN, Policy, policies_of
from specflow.simulation.predict import Evidence, break_even, predict
from specflow.simulation.simulator import simulate
from specflow.simulation.traces import traces_of
from tests.simulation.helpers import evidence, random_requests

FLAT = AdditiveTable(bias_seconds=0.5, requests=(1,), alpha_seconds=(0.0,), rows=(1,), theta_seconds=(0.0,))


def round_of(accepted: int, *, proposed: int = 3, delivered: int | None = None) -> dict[str, Any]:
    return {"proposed": proposed, "accepted": accepted, "delivered": accepted + 1 if delivered is None else delivered}


def replayed(requests: list[list[dict[str, Any]]], length: int) -> float:
    """Tokens per round when each request replays its rounds, cut to ``length``, until its tokens are delivered."""
    tokens = rounds = 0
    for request in requests:
        left = sum(r["delivered"] for r in request)
        tokens, place = tokens + left, 0
        while left > 0:
            left -= min(request[place % len(request)]["accepted"], length) + 1
            place, rounds = place + 1, rounds + 1
    return tokens / rounds


def test_mean_tokens_is_that_of_the_replay() -> None:
    requests = random_requests(requests=25)
    traces = traces_of(requests)
    for length in range(5):
        assert traces.mean_tokens(length) == pytest.approx(replayed(requests, length))
    assert traces.mean_tokens(0) == 1.0
    cut = traces_of([[round_of(3), round_of(3, delivered=2)]])
    assert cut.mean_tokens(3) == 3.0  # six tokens in two rounds
    assert cut.mean_tokens(1) == 2.0


def test_traces() -> None:
    traces = traces_of([[round_of(1)], [], [round_of(0), round_of(2)]])
    assert (traces.first_Q.tolist(), traces.rounds_Q.tolist(), traces.tokens_Q.tolist()) == ([0, 1], [1, 2], [2, 4])
    assert traces.survival_NM is None
    logits = [{**round_of(1), "confidence": [0.0, 0.0, 0.0]}]
    assert traces_of([logits]).survival_NM == pytest.approx(np.array([[0.5, 0.25, 0.125]]))
    assert traces_of([logits], temperatures=[1.0, 1.0, 2.0]).survival_NM == pytest.approx(
        np.array([[0.5, 0.25, 0.125]])
    )
    with pytest.raises(ValueError, match=r"rounds with \[3, 4\] proposals"):
        traces_of([[round_of(1)], [round_of(1, proposed=4)]])
    with pytest.raises(ValueError, match="rounds with no proposals"):
        traces_of([[]])


def test_one_request_by_hand() -> None:
    """Rounds of 0.5 s deliver 4, 1 and 1 of 6 tokens, over and over: 2 tokens a round, 4 a second."""
    traces = traces_of([[round_of(3), round_of(0), round_of(0)]])
    cost = RoundCost(table=FLAT)
    found = simulate(traces, Policy(kind="fixed", length=3), Load(concurrency=1), cost, rounds=600)
    assert found.tokens_per_second == pytest.approx(4.0, rel=0.01)
    assert (found.rows_per_request, found.running) == (4.0, 1.0)
    plain = simulate(traces, PLAIN, Load(concurrency=5), cost, rounds=100)
    assert (plain.tokens_per_second, plain.rows_per_request) == (pytest.approx(10.0), 1.0)
    # Every 6 tokens a prefill of one second: 6 tokens in 2.5 s.
    held = simulate(traces, Policy(kind="fixed", length=3), Load(concurrency=1), cost, rounds=600, prefill_seconds=1.0)
    assert held.tokens_per_second == pytest.approx(6 / 2.5, rel=0.01)


@pytest.mark.parametrize("length", [0, 1, 4])
@pytest.mark.parametrize("concurrency", [1, 7, 32])
def test_formula_agrees_with_simulation(length: int, concurrency: int) -> None:
    known = evidence(prefill=0.003)
    policy = Policy(kind="fixed", length=length) if length else PLAIN
    formula = predict(known, policy, Load(concurrency=concurrency))
    rounds = 20_000 // concurrency
    simulated = simulate(
        known.traces, policy, Load(concurrency=concurrency), known.cost_of(policy), rounds=rounds, prefill_seconds=0.003
    )
    assert formula.tokens_per_second == pytest.approx(simulated.tokens_per_second, rel=0.02)
    assert formula.tokens_per_round == pytest.approx(simulated.tokens_per_round, rel=0.02)


def test_a_scheduler_is_between_its_bounds() -> None:
    """Beside the best fixed length it loses nothing, and it gains where rows cost and confidence tells."""
    known = evidence(beside=0.0)
    for concurrency in (1, 8, 64, 256):
        load = Load(concurrency=concurrency)
        fixed = max(predict(known, Policy(kind="fixed", length=n), load).tokens_per_second for n in range(5))
        for kind in ("causal", "lagged"):
            scheduled = predict(known, Policy(kind=kind), load)  # type: ignore[arg-type]
            # A budget of two rounds ago fits badly where few requests run and rounds differ.
            assert scheduled.tokens_per_second > (0.97 if kind == "causal" else 0.9) * fixed
            assert 1.0 <= scheduled.rows_per_request <= 5.0
    assert predict(known, Policy(kind="lagged"), Load(concurrency=64)).tokens_per_second > 1.1 * fixed_at(known, 64)


def fixed_at(known: Evidence, concurrency: int) -> float:
    load = Load(concurrency=concurrency)
    return max(predict(known, Policy(kind="fixed", length=n), load).tokens_per_second for n in range(5))


def test_random_arrivals() -> None:
    """Far below saturation the engine delivers what arrives, and a request takes about its own rounds."""
    known = evidence(beside=0.0)
    policy = Policy(kind="fixed", length=4)
    mean_tokens = float(known.traces.tokens_Q.mean())
    slow = simulate(known.traces, policy, Load(concurrency=8, rate=0.5), known.cost, rounds=3000)
    assert slow.tokens_per_second == pytest.approx(0.5 * mean_tokens, rel=0.25)
    own = mean_tokens / known.traces.mean_tokens(4) * float(known.cost.seconds(1, 5))
    assert slow.seconds_per_request == pytest.approx(own, rel=0.25)
    closed = predict(known, policy, Load(concurrency=8))
    flooded = simulate(known.traces, policy, Load(concurrency=8, rate=1000.0), known.cost, rounds=600)
    assert flooded.tokens_per_second == pytest.approx(closed.tokens_per_second, rel=0.05)
    assert flooded.running == pytest.approx(8.0, rel=0.01)
    assert flooded.seconds_per_request is not None
    assert flooded.seconds_per_request > 3 * slow.seconds_per_request
    arrivals = Arrivals(Load(concurrency=1, rate=4.0), seed=3)
    moments = [arrivals.take() for _ in range(4000)]
    assert moments == sorted(moments)
    assert moments[-1] / 4000 == pytest.approx(0.25, rel=0.05)


def test_buckets_are_filled() -> None:
    known = evidence(beside=0.0)
    buckets = Buckets((40,))
    found = simulate(known.traces, Policy(kind="lagged"), Load(concurrency=8), known.cost, rounds=100, buckets=buckets)
    # Eight requests of five rows fill the bucket of 40; what is below the floor of survival stays out.
    assert found.rows_per_request == 5.0


def test_break_even() -> None:
    for edge in (1, 2, 3, 17, 64, 65, 300, 511):
        assert break_even(lambda c, edge=edge: 1.5 if c <= edge else 0.9) == edge  # type: ignore[misc]
    assert break_even(lambda c: 0.9) is None
    assert break_even(lambda c: 1.1) == 512
    assert break_even(lambda c: 1.1 if c <= 70 else 0.9, largest=100) == 70
    assert break_even(lambda c: 1.1, largest=100) == 100


def test_same_seed_same_figures_and_it_takes_seconds() -> None:
    known = evidence()
    begin = time.perf_counter()
    first, second = (predict(known, Policy(kind="lagged"), Load(concurrency=512)) for _ in range(2))
    assert first == second
    assert time.perf_counter() - begin < 20
    assert predict(known, Policy(kind="lagged"), Load(concurrency=512), seed=1) != first


def test_policies() -> None:
    assert [p.name for p in policies_of(2, confident=True)] == ["fixed 1", "fixed 2", "causal", "lagged"]
    assert [p.name for p in policies_of(1, confident=False)] == ["fixed 1"]
    with pytest.raises(ValueError, match="no confidence to schedule by"):
        predict(evidence(confident=False), Policy(kind="causal"), Load(concurrency=1))
    with pytest.raises(ValueError, match="expected at least 1"):
        Load(concurrency=0)
