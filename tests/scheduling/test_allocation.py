"""Allocation against a brute force on 10,000 cases with ties; the worked example; decisions that look at no future."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from specflow.costs.tables import RowTable
from specflow.scheduling.allocation import allocate, causal_lengths
from specflow.scheduling.budget import host_budget
from specflow.scheduling.limits import Limits
from specflow.scheduling.survival import survival_of

WORKED = RowTable(rows=(2, 3, 4, 5, 6, 7, 8), rounds_per_second=(100, 95, 90, 85, 80, 65, 55), max_rows=8)
LAGGED = np.array([[0.9, 0.6, 0.2], [0.8, 0.5, 0.1]])
CURRENT = np.array([[0.95, 0.9, 0.85], [0.7, 0.3, 0.1]])
LIMITS = Limits(num_proposals=3)


def test_worked_example() -> None:
    budget = host_budget(LAGGED, WORKED)
    assert (budget.positions, budget.tokens_per_second) == (4, pytest.approx(384.0))
    assert budget.seconds == pytest.approx(1 / 80)
    assert allocate(CURRENT, budget.positions, LIMITS).tolist() == [4, 2]


def by_hand(survival: np.ndarray, budget: int, limits: Limits) -> list[int]:
    """One position at a time, the best left by the total order; no sorting."""
    left = {(r, j) for r in range(len(survival)) for j in range(survival.shape[1]) if survival[r, j] >= 1e-6}
    taken = [0] * len(survival)
    for _ in range(budget):
        if not left:
            break
        best = None
        for r, j in left:
            if best is None or (-survival[r, j], j, r) < (-survival[best], best[1], best[0]):
                best = (r, j)
        left.remove(best)
        taken[best[0]] += 1
    return [min(max(1 + n, limits.shortest), limits.most) for n in taken]


def test_equals_brute_force_with_ties() -> None:
    random = np.random.default_rng(0)
    ties = 0
    for _ in range(10_000):
        requests, positions = int(random.integers(1, 6)), int(random.integers(1, 6))
        # Few values, so that ties are the rule; 1e-7 is below the floor, 0 and 1 at the ends.
        steps = random.choice([1.0, 1.0, 0.5, 0.5, 0.25, 1e-7, 0.0], size=(requests, positions))
        survival = np.cumprod(steps, axis=1)
        ties += len(np.unique(survival)) < survival.size
        shortest, longest = sorted(random.integers(1, positions + 2, size=2).tolist())
        limits = Limits(num_proposals=positions, shortest=shortest, longest=longest)
        budget = int(random.integers(0, survival.size + 2))
        assert allocate(survival, budget, limits).tolist() == by_hand(survival, budget, limits)
    assert ties > 8000


def test_budget_equals_brute_force() -> None:
    random = np.random.default_rng(1)
    first_of_equals = 0
    for _ in range(2000):
        requests, positions = int(random.integers(1, 5)), int(random.integers(1, 5))
        survival = np.cumprod(random.choice([1.0, 1.0, 1.0, 0.5, 1e-7], size=(requests, positions)), axis=1)
        probes = np.unique(random.integers(1, 25, size=4))
        rates = -np.sort(-random.choice([64.0, 32.0, 16.0, 8.0], size=len(probes)))
        table = RowTable(rows=tuple(probes.tolist()), rounds_per_second=tuple(rates.tolist()), max_rows=100)
        alive = sorted((float(s) for s in survival.reshape(-1) if s >= 1e-6), reverse=True)
        values = []
        for k in range(len(alive) + 1):
            at = [i for i, probe in enumerate(probes) if probe <= requests + k]
            values.append((requests + sum(alive[:k])) * rates[at[-1] if at else 0])
        best = max(values)
        first_of_equals += sum(v == best for v in values) > 1
        found = host_budget(survival, table)
        assert found.positions == min(k for k, v in enumerate(values) if v >= best * (1 - 1e-12))
        assert found.tokens_per_second == pytest.approx(best)
    assert first_of_equals > 5


SURVIVAL = npst.arrays(np.float64, (3, 4), elements=st.floats(0.01, 1.0)).map(lambda a: np.cumprod(a, axis=1))
RATES = st.lists(st.floats(1.0, 100.0), min_size=16, max_size=16).map(lambda r: sorted(r, reverse=True))


@settings(max_examples=300, deadline=None)
@given(SURVIVAL, RATES)
def test_causal_admits_in_order_while_throughput_grows(survival: np.ndarray, rates: list[float]) -> None:
    table = RowTable(rows=tuple(range(3, 19)), rounds_per_second=tuple(rates), max_rows=20)
    alive = [(r, j) for r in range(3) for j in range(4) if survival[r, j] >= 1e-6]
    order = sorted(alive, key=lambda p: (-survival[p], p[1], p[0]))
    taken, tokens, rate = [0, 0, 0], 3.0, 3.0 * rates[0]
    for number, (r, j) in enumerate(order, 1):
        tokens += survival[r, j]
        if tokens * rates[number] <= rate * (1 + 1e-12):
            break
        rate, taken[r] = tokens * rates[number], taken[r] + 1
    found = causal_lengths(survival, table, Limits(num_proposals=4)).tolist()
    assert found == [1 + n for n in taken]


def verified(lengths: np.ndarray, request: int, position: int) -> bool:
    return bool(lengths[request] - 1 > position)


@settings(max_examples=300, deadline=None)
@given(SURVIVAL, RATES, st.integers(0, 12), st.integers(0, 2), st.integers(0, 3), st.data())
def test_nothing_looks_ahead(
    survival: np.ndarray, rates: list[float], budget: int, request: int, position: int, data: st.DataObject
) -> None:
    """What comes after a position in its own request does not decide whether it is verified."""
    table = RowTable(rows=tuple(range(3, 19)), rounds_per_second=tuple(rates), max_rows=20)
    limits = Limits(num_proposals=4)
    other = survival.copy()
    shrink = [data.draw(st.floats(0.0, 1.0)) for _ in range(position + 1, 4)]
    other[request, position + 1 :] = other[request, position] * np.cumprod(shrink)
    for decide in (lambda s: causal_lengths(s, table, limits), lambda s: allocate(s, budget, limits)):
        assert verified(decide(survival), request, position) == verified(decide(other), request, position)


def test_a_budget_from_current_confidence_looks_ahead() -> None:
    """The counter-example: the last position decides whether the one before it is verified."""
    table = RowTable(rows=(1, 2, 3), rounds_per_second=(10.0, 6.0, 5.9), max_rows=3)
    limits = Limits(num_proposals=2)

    def anticipating(survival: np.ndarray) -> np.ndarray:
        return allocate(survival, host_budget(survival, table).positions, limits)

    likely, unlikely = np.array([[0.6, 0.59]]), np.array([[0.6, 0.0]])
    assert verified(anticipating(likely), 0, 0)
    assert not verified(anticipating(unlikely), 0, 0)
    assert not verified(causal_lengths(likely, table, limits), 0, 0)


def test_survival_from_logits() -> None:
    found = survival_of([[0.0, np.log(3.0), -200.0]], [1.0, 1.0, 1.0])
    assert found == pytest.approx(np.array([[0.5, 0.375, 0.0]]))
    assert survival_of([[4.0, 4.0]], [2.0, 4.0])[0].tolist() == pytest.approx([0.8807971, 0.8807971 * 0.7310586])
    assert (np.diff(survival_of(np.random.default_rng(0).normal(5, 9, (50, 7)))) <= 0).all()
    with pytest.raises(ValueError, match="1 temperatures for 2 proposals"):
        survival_of([[1.0, 1.0]], [1.0])


def test_limits() -> None:
    assert Limits(num_proposals=3).most == 4
    for bad in ({"shortest": 0}, {"longest": 5}, {"shortest": 3, "longest": 2}):
        with pytest.raises(ValueError, match="1 <= shortest <= longest <= 4"):
            Limits(num_proposals=3, **bad)
