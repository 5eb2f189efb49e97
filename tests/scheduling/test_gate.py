"""Who drafts: the best number by brute force, what is expected of whom, and what looking again may cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from specflow.costs.drafting import DraftCost, fit_draft_cost
from specflow.costs.tables import AdditiveTable, RowTable
from specflow.scheduling.budget import host_budget, pooled_budget
from specflow.scheduling.gate import PRIOR_ROUNDS, Gate
from specflow.scheduling.histories import Histories
from specflow.scheduling.lag import REMEMBERED, LagQueue, Slot
from specflow.scheduling.limits import Limits
from specflow.scheduling.planner import Planner

LINEAR = AdditiveTable(
    bias_seconds=0.01, requests=(1, 64), alpha_seconds=(0.0, 0.0), rows=(1, 512), theta_seconds=(0.01, 5.12)
)
"""10 ms, and 10 ms a row."""
SURVIVAL = npst.arrays(np.float64, (4, 3), elements=st.floats(0.05, 1.0)).map(lambda c: np.cumprod(c, axis=1))


def slots(count: int) -> list[Slot]:
    return [Slot(place, 0) for place in range(count)]


def told(survival_RM: np.ndarray, **changes: Any) -> tuple[Gate, LagQueue]:
    """Each request has done the same for as long as is remembered."""
    known = LagQueue(1)
    for _ in range(REMEMBERED):
        known.publish(slots(len(survival_RM)), survival_RM)
    given: dict[str, Any] = {"cost": LINEAR, "drafting": DraftCost(), "explore": 0.0, **changes}
    gate = Gate(num_proposals=survival_RM.shape[1], **given)
    return gate, known


@settings(max_examples=60, deadline=None)
@given(SURVIVAL, st.floats(0.0, 0.03), st.floats(0.0, 0.03))
def test_the_best_number_by_brute_force(survival: np.ndarray, per_round: float, per_request: float) -> None:
    drafting = DraftCost(per_round=per_round, per_request=per_request)
    gate, known = told(survival, drafting=drafting)
    found = gate.drafters(slots(4), known)
    weight = REMEMBERED / (REMEMBERED + PRIOR_ROUNDS)
    survival = weight * survival + (1 - weight) * survival.mean(axis=0)
    order = sorted(range(4), key=lambda r: -survival[r].sum())
    rates = {}
    for count in range(5):
        best = sorted(survival[order[:count]].flatten(), reverse=True)
        rates[count] = max(
            (4 + sum(best[:k])) / (0.01 + 0.01 * (4 + k) + drafting.seconds(count)) for k in range(len(best) + 1)
        )
    chosen = sum(found)
    assert rates[chosen] == pytest.approx(max(rates.values()))
    assert [r for r in order if found[r]] == order[:chosen] or len(set(survival.sum(axis=1).round(9))) < 4


def test_nobody_drafts_where_rows_are_dear() -> None:
    poor, good = np.array([[0.3, 0.1]] * 3), np.array([[0.99, 0.98]] * 3)
    drafting = DraftCost(per_request=0.002)
    for survival, wanted in ((poor, [False] * 3), (good, [True] * 3), (np.stack([poor[0], good[0]]), [False, True])):
        gate, known = told(survival, drafting=drafting)
        # Another row costs 10 ms; 40 ms give three tokens, so it must bring three quarters of one.
        assert gate.drafters(slots(len(survival)), known) == wanted


def test_what_is_expected_of_a_new_request() -> None:
    drafting = DraftCost(per_request=0.001)
    fresh = LagQueue(1)
    for expected, wanted in ((None, True), (np.array([0.2, 0.1]), False), (np.array([0.99, 0.98]), True)):
        gate = Gate(cost=LINEAR, drafting=drafting, num_proposals=2, explore=0.0, expected_M=expected)
        assert gate.drafters(slots(3), fresh) == [wanted] * 3
    # Without anything known beforehand, what the others do is expected.
    for survival, wanted in (([0.2, 0.1], False), ([0.99, 0.98], True)):
        gate, known = told(np.array([survival] * 3), drafting=drafting)
        assert gate.drafters([*slots(3), Slot(9, 0)], known)[3] is wanted


def test_bad_luck_once_does_not_silence_a_request() -> None:
    good, bad = np.array([0.99, 0.98]), np.array([0.1, 0.05])
    drafting, four = DraftCost(per_request=0.002), slots(4)
    cheap = RowTable(
        rows=tuple(range(1, 17)), rounds_per_second=tuple(1 / (0.04 + 0.005 * n) for n in range(1, 17)), max_rows=16
    )
    gate, known = told(np.stack([good] * 4), drafting=drafting, cost=cheap)
    known.publish(four, np.stack([bad, good, good, good]))
    assert gate.drafters(four, known) == [True] * 4
    newcomer = [*four[1:], Slot(9, 0)]
    known.publish(newcomer, np.stack([good, good, good, bad]))
    assert gate.drafters(newcomer, known)[3]
    for _ in range(30):
        known.publish(newcomer, np.stack([good, good, good, bad]))
    assert gate.drafters(newcomer, known) == [True, True, True, False]


def test_looking_again_keeps_to_its_share_and_to_turns() -> None:
    gate, known = told(np.array([[0.2, 0.1]] * 4), drafting=DraftCost(per_request=0.004), explore=0.02)
    rounds = [gate.drafters(slots(4), known) for _ in range(160)]
    drafted = np.array(rounds).sum(axis=0)
    spent, of = 0.004 * drafted.sum(), 160 * 0.05
    assert 0.9 * 0.02 * of < spent <= 0.02 * of
    assert drafted.max() - drafted.min() <= 1
    gate, known = told(np.array([[0.2, 0.1]] * 4), drafting=DraftCost(per_request=0.004))
    assert not np.array([gate.drafters(slots(4), known) for _ in range(50)]).any()


@settings(max_examples=60, deadline=None)
@given(SURVIVAL, st.lists(st.floats(5.0, 100.0), min_size=16, max_size=16).map(lambda r: sorted(r, reverse=True)))
def test_a_pooled_budget(survival: np.ndarray, rates: list[float]) -> None:
    table = RowTable(rows=tuple(range(4, 20)), rounds_per_second=tuple(rates), max_rows=20)
    assert pooled_budget(survival[None], 4, table) == host_budget(survival, table)
    samples = survival.reshape(4, 1, 3)  # four rounds of one request, another three draft nothing
    found = pooled_budget(samples, 4, table)
    by_hand = [np.mean([4 + own[0, :k].sum() for own in samples]) * rates[k] for k in range(4)]
    assert found.tokens_per_second == pytest.approx(max(by_hand))
    assert by_hand[found.positions] == pytest.approx(max(by_hand))


def test_rounds_of_a_request_are_remembered_and_missing_ones_left_out() -> None:
    queue, (a, b) = LagQueue(1), slots(2)
    nothing = [np.nan, np.nan]
    for rows in ([[0.9, 0.8], [0.5, 0.4]], [nothing, [0.3, 0.2]], [[0.7, 0.6], nothing]):
        queue.publish([a, b], np.array(rows))
    samples = queue.samples([a, b, Slot(7, 0)], 2, 3)
    assert samples[:, 0].tolist() == [[0.7, 0.6], [0.9, 0.8], [0.7, 0.6]]
    assert samples[:, 1].tolist() == [[0.3, 0.2], [0.5, 0.4], [0.3, 0.2]]
    assert samples[:, 2].tolist() == [[1.0, 1.0]] * 3
    known, sums, counts = queue.sums([Slot(7, 0), b])
    assert (known.tolist(), counts.tolist()) == ([1], [2])
    assert sums[0].tolist() == pytest.approx([0.8, 0.6])
    queue.publish([b], np.array([[0.1, 0.1]]))
    assert queue.sums([a, b])[0].tolist() == [1]  # the other one ended
    expected = LagQueue(1, unknown_M=np.array([0.5, 0.25]))
    assert expected.samples([a], 2, 1)[0].tolist() == [[0.5, 0.25]]


def test_requests_that_draft_nothing_have_one_row() -> None:
    limits = Limits(num_proposals=2, shortest=2)
    for mode in ("causal", "lagged"):
        planner = Planner(mode=mode, limits=limits, cost=LINEAR, lag=1, expected_M=np.array([0.9, 0.1]))
        rows = planner.plan(slots(3), np.array([[0.9, 0.8], [np.nan, np.nan], [0.2, 0.1]]))
        assert rows[1] == 1
        assert rows[2] == 2
        assert (rows >= 1).all()
    with pytest.raises(ValueError, match="1 expected survivals for 2 proposals"):
        Planner(mode="lagged", limits=limits, cost=LINEAR, expected_M=np.array([0.5]))


def test_drafting_makes_rows_cheaper() -> None:
    """What is spent already is spent: with it more rows are worth while."""
    survival = np.array([[0.45, 0.3, 0.2]])
    rows = []
    for seconds in (0.0, 0.1):
        planner = Planner(
            mode="causal", limits=Limits(num_proposals=3), cost=LINEAR, drafting=DraftCost(per_request=seconds)
        )
        rows.append(int(planner.plan(slots(1), survival)[0]))
    # 1.45 / 30 ms < 1 / 20 ms; 1.45 / 130 ms and 1.75 / 140 and 1.95 / 150 ms grow.
    assert rows == [1, 4]


def test_draft_cost() -> None:
    cost = fit_draft_cost((1, 4, 16), (0.003, 0.006, 0.018))
    assert (cost.per_round, cost.per_request) == pytest.approx((0.002, 0.001))
    assert (cost.seconds(0), cost.seconds(3)) == pytest.approx((0.0, 0.005))
    one = fit_draft_cost((4,), (0.008,))
    assert (one.per_round, one.per_request) == pytest.approx((0.0, 0.002))
    assert fit_draft_cost((1, 4), (0.004, 0.001)).per_request == 0.0
    with pytest.raises(ValueError, match="expected at least 0"):
        DraftCost(per_request=-1.0)


def test_histories_are_rings() -> None:
    random, found = np.random.default_rng(0), Histories(3)
    by_hand: dict[int, list[list[float]]] = {}
    for step in range(60):
        if step % 20 == 19:
            kept = set(list(by_hand)[::2])
            found.keep_only(kept)
            by_hand = {key: rows for key, rows in by_hand.items() if key in kept}
        keys = [int(key) for key in np.flatnonzero(random.random(30) < 0.3)]
        rows = random.random((len(keys), 2))
        found.add(keys, rows)
        for key, row in zip(keys, rows.tolist(), strict=True):
            by_hand.setdefault(key, []).append(row)
        asked = list(range(30))
        newest = found.newest(asked, 4, np.array([0.25, 0.125]))
        known, sums, counts = found.sums(asked)
        assert known.tolist() == sorted(by_hand)
        for key in asked:
            last = by_hand.get(key, [[0.25, 0.125]])[-3:][::-1]
            assert newest[:, key].tolist() == [last[i % len(last)] for i in range(4)]
        for key, total, count in zip(known.tolist(), sums, counts.tolist(), strict=True):
            assert count == len(by_hand[key][-3:])
            assert total == pytest.approx(np.sum(by_hand[key][-3:], axis=0))


def test_a_decision_stays_until_something_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a gate that decides anew in every round, with requests that come and go and others that learn."""
    random, known = np.random.default_rng(2), LagQueue(2)
    given: dict[str, Any] = {"cost": LINEAR, "drafting": DraftCost(per_request=0.004), "num_proposals": 3}
    keeping, anew = (Gate(explore=0.05, **given) for _ in range(2))
    asked: list[int] = []
    decide = Gate._decide
    monkeypatch.setattr(Gate, "_decide", lambda self, *a: (asked.append(id(self)), decide(self, *a))[1])
    places = list(range(4))
    for number in range(120):
        if number % 17 == 0:
            places[number % 4] = number + 10
        running = [Slot(place, 0) for place in places]
        anew._decided = None
        drafts = keeping.drafters(running, known)
        assert drafts == anew.drafters(running, known)
        likely = 0.02 if 30 < number < 90 else 0.9
        survival = np.cumprod(random.uniform(0.8 * likely, likely, (4, 3)), axis=1)
        known.publish(running, np.where(np.array(drafts)[:, None], survival, np.nan))
    assert asked.count(id(anew)) == 120
    assert 20 < asked.count(id(keeping)) < 110
