"""Intervals of ratios of sums."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from specflow.training.bootstrap import ratio_intervals


def test_interval_is_that_of_all_resamples() -> None:
    """Three documents have 27 resamples; their exact percentiles are those of many draws."""
    above, below = np.array([4.0, 9.0, 2.0]), np.array([2.0, 3.0, 2.0])
    exact = [above[list(d)].sum() / below[list(d)].sum() for d in itertools.product(range(3), repeat=3)]
    low, high = np.percentile(np.repeat(exact, 1000), [2.5, 97.5])
    found = ratio_intervals(above[:, None], below[:, None], samples=20000)
    assert found == [pytest.approx((low, high))]


def test_interval_shrinks_with_documents_and_covers_the_ratio() -> None:
    rng = np.random.default_rng(5)
    widths = []
    for count in (20, 80, 320):
        rounds = rng.integers(5, 30, size=count)
        delivered = rounds * rng.uniform(1.5, 3.5, size=count)
        ((low, high),) = ratio_intervals(delivered[:, None], rounds[:, None])  # type: ignore[misc]
        assert low < delivered.sum() / rounds.sum() < high
        widths.append(high - low)
    assert widths[0] / widths[1] == pytest.approx(2, rel=0.5)
    assert widths[1] / widths[2] == pytest.approx(2, rel=0.5)


def test_seeded_and_none_of_fewer_than_two_documents() -> None:
    above, below = [[3, 0], [5, 1], [4, 0]], [[2, 0], [2, 1], [3, 0]]
    first = ratio_intervals(above, below, seed=1)
    assert first == ratio_intervals(above, below, seed=1)
    assert first[1] is None
    many = [[n % 7 + 1] for n in range(50)], [[n % 5 + 1] for n in range(50)]
    assert ratio_intervals(*many, seed=1) != ratio_intervals(*many, seed=2)
    assert ratio_intervals([[3, 1]], [[2, 1]]) == [None, None]
    assert ratio_intervals([], []) == []
