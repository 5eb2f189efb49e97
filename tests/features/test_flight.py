"""Requests ahead of the taker: order, bounds, errors, and that nothing is asked twice."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specflow.features.flight import Flight


class Asked:
    """Counts what is asked and not yet taken."""

    def __init__(self, costs: list[int]) -> None:
        self.costs = costs
        self.order: list[int] = []
        self.most_cost = self.most = 0
        self.open: set[int] = set()
        self.lock = threading.Lock()

    async def __call__(self, index: int) -> int:
        with self.lock:
            self.order.append(index)
            self.open.add(index)
            self.most = max(self.most, len(self.open))
            self.most_cost = max(self.most_cost, sum(self.costs[i] for i in self.open))
        await asyncio.sleep(0)
        return 10 * index

    def taken(self, index: int) -> None:
        with self.lock:
            self.open.discard(index)


@settings(max_examples=40, deadline=None)
@given(
    costs=st.lists(st.integers(1, 9), min_size=1, max_size=25),
    budget=st.integers(1, 20),
    most=st.integers(1, 6),
)
def test_every_answer_once_within_the_bounds(costs: list[int], budget: int, most: int) -> None:
    asked = Asked(costs)
    flight: Flight[int] = Flight(asked, cost=costs.__getitem__, budget=budget, most=most)
    try:
        flight.expect(range(len(costs)))
        for index in range(len(costs)):
            asked.taken(index - 1)
            assert flight.take(index) == 10 * index
        assert sorted(asked.order) == list(range(len(costs)))
        # The next one is asked inside `take`, before what was taken is counted as such.
        assert asked.most <= most + 1
        assert asked.most_cost <= max(budget, max(costs)) + max(costs)
    finally:
        flight.close()


def test_what_was_not_expected_is_asked_when_it_is_taken() -> None:
    asked = Asked([1] * 10)
    flight: Flight[int] = Flight(asked, cost=lambda _: 1, budget=2, most=2)
    flight.expect([0, 1, 2, 3])
    assert flight.take(7) == 70
    assert [flight.take(i) for i in (3, 2, 1, 0)] == [30, 20, 10, 0]
    assert sorted(asked.order) == [0, 1, 2, 3, 7]
    flight.close()


def test_an_error_is_raised_where_its_answer_is_taken() -> None:
    async def ask(index: int) -> int:
        if index == 1:
            raise ValueError("one")
        return index

    flight: Flight[int] = Flight(ask, cost=lambda _: 1, budget=9, most=9)
    flight.expect([0, 1, 2])
    assert flight.take(0) == 0
    with pytest.raises(ValueError, match="one"):
        flight.take(1)
    assert flight.take(2) == 2
    flight.close()


def test_closing_gives_up_what_is_under_way() -> None:
    cancelled = threading.Event()

    async def ask(index: int) -> int:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return index

    flight: Flight[int] = Flight(ask, cost=lambda _: 1, budget=9, most=9)
    flight.expect([0, 1])
    flight.call(asyncio.sleep(0))
    flight.cancel()
    assert cancelled.wait(5)
    flight.close()
