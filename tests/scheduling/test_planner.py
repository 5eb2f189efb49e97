"""Lag, generations, cold start, buckets, and what a cut commits."""

from __future__ import annotations

import numpy as np
import pytest

from specflow.costs.buckets import Buckets
from specflow.costs.tables import RowTable
from specflow.scheduling.cut import accept_under_cut
from specflow.scheduling.lag import LagQueue, Slot
from specflow.scheduling.limits import Limits
from specflow.scheduling.planner import MODES, Planner
from tests.scheduling.test_allocation import CURRENT, LAGGED, WORKED

A, B = Slot(0, 1), Slot(1, 1)
LIMITS = Limits(num_proposals=3)


def test_lagged_plan_is_the_worked_example() -> None:
    planner = Planner(mode="lagged", limits=LIMITS, cost=WORKED)
    assert planner.plan([A, B], LAGGED).tolist() == [4, 4]  # cold: nothing is two rounds old
    assert planner.plan([A, B], CURRENT).tolist() == [4, 4]
    assert planner.plan([A, B], CURRENT).tolist() == [4, 2]  # the budget of two rounds ago, spent by what is known now


def test_a_budget_is_blind_to_its_own_round() -> None:
    """Whatever the two latest rounds say, the number of positions stays."""
    for latest in (np.zeros((2, 3)), np.ones((2, 3))):
        planner = Planner(mode="lagged", limits=LIMITS, cost=WORKED)
        planner.plan([A, B], LAGGED)
        planner.plan([A, B], latest)
        assert planner.plan([A, B], CURRENT).sum() == 2 + 4


def test_another_request_in_the_slot_counts_as_unknown() -> None:
    queue = LagQueue(2)
    queue.publish([A, B], LAGGED)
    queue.publish([A, B], CURRENT)
    renewed = Slot(1, 2)
    assert queue.lagged([B, A], 3).tolist() == [LAGGED[1].tolist(), LAGGED[0].tolist()]
    assert queue.lagged([A, renewed, Slot(2, 1)], 3).tolist() == [LAGGED[0].tolist(), [1.0] * 3, [1.0] * 3]
    planner = Planner(mode="lagged", limits=LIMITS, cost=WORKED)
    planner.plan([A, B], LAGGED)
    planner.plan([A, B], CURRENT)
    # [.9 .6 .2] and [1 1 1]: 2 + 1 + 1 + 1 + .9 = 5.9 at 80 a second is more than 6.5 at 65 and 5 at 85.
    assert planner.plan([A, renewed], CURRENT).tolist() == [4, 2]


def test_not_available_means_full_length() -> None:
    planner = Planner(mode="lagged", limits=LIMITS, cost=WORKED)
    planner.plan([A, B], LAGGED)
    assert planner.plan([A, B], None).tolist() == [4, 4]  # this round's confidence did not arrive
    assert planner.plan([A, B], CURRENT).tolist() == [4, 2]  # that of two rounds ago did
    assert planner.plan([A, B], CURRENT).tolist() == [4, 4]  # and now the missing one is two rounds old
    assert planner.plan([], np.ones((0, 3))).tolist() == []


def test_published_rows_are_copies() -> None:
    queue, row = LagQueue(1), LAGGED.copy()
    queue.publish([A, B], row)
    row[:] = 0.0
    assert queue.lagged([A, B], 3).tolist() == LAGGED.tolist()
    with pytest.raises(ValueError, match="survival of 2 requests, 1 are running"):
        queue.publish([A], LAGGED)
    with pytest.raises(ValueError, match="at least 1"):
        LagQueue(0)


def test_modes() -> None:
    assert MODES == ("off", "causal", "lagged")
    off = Planner(mode="off", limits=LIMITS)
    assert off.plan([A, B], CURRENT).tolist() == [4, 4]
    # 2, 2.95, 3.85, 4.7, 5.4 tokens at 100, 95, 90, 85, 80 grow to 432; 5.7 at 65 is a fall.
    causal = Planner(mode="causal", limits=LIMITS, cost=WORKED)
    assert causal.plan([A, B], CURRENT).tolist() == [4, 2]
    assert causal.plan([A, B], None).tolist() == [4, 4]
    with pytest.raises(ValueError, match="needs a cost table"):
        Planner(mode="lagged", limits=LIMITS)
    with pytest.raises(ValueError, match="expected one of off, causal, lagged"):
        Planner(mode="on", limits=LIMITS)  # type: ignore[arg-type]


def test_a_bucket_is_filled() -> None:
    buckets = Buckets((2, 5, 8))
    assert buckets.padded([1, 2, 3, 5, 6, 9]).tolist() == [2, 2, 5, 5, 8, 9]
    assert buckets.filled(1, requests=2, most=6) == 3
    assert buckets.filled(4, requests=2, most=5) == 5
    assert buckets.filled(7, requests=2, most=9) == 7  # beyond the last bucket
    planner = Planner(mode="lagged", limits=LIMITS, cost=WORKED, buckets=Buckets((4, 8)))
    for survival in (LAGGED, CURRENT):
        planner.plan([A, B], survival)
    assert planner.plan([A, B], CURRENT).tolist() == [4, 4]  # 6 rows would be computed as 8
    flat = Planner(mode="lagged", limits=LIMITS, cost=RowTable(rows=(1,), rounds_per_second=(1.0,), max_rows=9))
    for _ in range(2):
        flat.plan([A, B], CURRENT)
    assert flat.plan([A, B], CURRENT).tolist() == [4, 4]  # a flat table verifies everything


@pytest.mark.parametrize(
    ("accepted", "verify_len", "expected"),
    [(3, 4, (3, 0, 4)), (3, 3, (2, 1, 3)), (3, 1, (0, 3, 1)), (1, 3, (1, 0, 2)), (0, 1, (0, 0, 1))],
)
def test_accept_under_a_cut(accepted: int, verify_len: int, expected: tuple[int, int, int]) -> None:
    found = accept_under_cut(accepted, verify_len)
    assert (found.accepted, found.trimmed, found.committed) == expected
    assert found.accepted + found.trimmed == accepted
    with pytest.raises(ValueError, match="at least 1"):
        accept_under_cut(0, 0)
