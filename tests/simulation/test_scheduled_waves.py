"""A finite wave adds up by hand; a scheduler stops drafting where rows are dear, and comes near the better way."""

from __future__ import annotations

from typing import Any

import pytest

from specflow.costs.drafting import DraftCost
from specflow.costs.tables import AdditiveTable, RowTable
from specflow.simulation.costs import RoundCost
from specflow.simulation.load import Load
from specflow.simulation.policy import PLAIN, Policy
from specflow.simulation.simulator import simulate, simulate_wave
from specflow.simulation.traces import Traces, traces_of
from tests.simulation.helpers import TABLE, random_requests

FIXED, LAGGED, CAUSAL = Policy(kind="fixed", length=3), Policy(kind="lagged"), Policy(kind="causal")
FLAT = RowTable(rows=(1,), rounds_per_second=(100.0,), max_rows=64)


def constant(requests: int, *, rounds: int = 5, accepted: int = 2) -> Traces:
    row: dict[str, Any] = {
        "proposed": 3,
        "accepted": accepted,
        "delivered": accepted + 1,
        "confidence": [2.0, 1.0, 0.0],
    }
    return traces_of([[row] * rounds for _ in range(requests)])


def test_a_wave_by_hand() -> None:
    cost = RoundCost(table=FLAT, drafting=DraftCost(per_round=0.001, per_request=0.002))
    # Four requests of 15 tokens, two at a time: ten rounds of 10 + 1 + 2 * 2 ms, and four prefills.
    fixed = simulate_wave(constant(4), FIXED, 2, cost, prefill_seconds=0.05)
    assert fixed.tokens_per_second == pytest.approx(60 / (10 * 0.015 + 0.2))
    assert (fixed.tokens_per_round, fixed.rows_per_request, fixed.running) == (3.0, 4.0, 2.0)
    # Without drafting thirty rounds of 10 ms.
    plain = simulate_wave(constant(4), PLAIN, 2, cost.without_drafting())
    assert plain.tokens_per_second == pytest.approx(60 / 0.3)
    # An odd one runs alone at the end.
    odd = simulate_wave(constant(3), FIXED, 2, cost)
    assert odd.tokens_per_second == pytest.approx(45 / (5 * 0.015 + 5 * 0.013))
    assert odd.running == 1.5


def test_mean_survival() -> None:
    assert constant(2).mean_survival_M().tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("policy", [CAUSAL, LAGGED])
@pytest.mark.parametrize("concurrency", [1, 8, 32, 128])
def test_near_the_better_of_all_and_none(policy: Policy, concurrency: int) -> None:
    """Easy and hard text mixed; drafting costs a quarter of a pass. Nobody knows beforehand which way is better."""
    traces = traces_of(random_requests(proposals=4))
    drafting = DraftCost(per_round=0.002, per_request=0.0002)
    cost, load = RoundCost(table=TABLE, drafting=drafting), Load(concurrency=concurrency)
    rounds = max(400, 6000 // concurrency)
    found = simulate(traces, policy, load, cost, rounds=rounds).tokens_per_second
    full = simulate(traces, Policy(kind="fixed", length=4), load, cost, rounds=rounds).tokens_per_second
    plain = simulate(traces, PLAIN, load, cost.without_drafting(), rounds=rounds).tokens_per_second
    assert found > 0.98 * max(full, plain)


def test_nobody_drafts_where_rows_are_dear() -> None:
    steep = AdditiveTable(
        bias_seconds=0.001, requests=(1, 64), alpha_seconds=(0.0, 0.0), rows=(1, 512), theta_seconds=(0.01, 5.12)
    )
    cost = RoundCost(table=steep, drafting=DraftCost(per_request=0.002))
    traces = traces_of(random_requests(proposals=4))
    for policy in (CAUSAL, LAGGED):
        found = simulate(traces, policy, Load(concurrency=16), cost, rounds=300)
        plain = simulate(traces, PLAIN, Load(concurrency=16), cost.without_drafting(), rounds=300)
        assert found.tokens_per_second > 0.985 * plain.tokens_per_second
        assert found.rows_per_request < 1.1
