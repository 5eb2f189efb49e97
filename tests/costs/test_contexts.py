"""Lengths of requests in timed passes."""

from __future__ import annotations

import numpy as np
import pytest

from specflow.costs.contexts import contexts_like, even_points, spread_contexts


def test_points_are_even_for_every_number_of_requests() -> None:
    assert even_points(7) == [0.5, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875]
    for count in (1, 3, 7, 31):
        assert sorted(even_points(count)) == pytest.approx([(i + 1) / (count + 1) for i in range(count)])


def test_contexts() -> None:
    assert spread_contexts(128, 7, spread=0.5) == [128, 96, 160, 80, 144, 112, 176]
    assert spread_contexts(128, 3, spread=0.0) == [128] * 3
    assert spread_contexts(1, 3, spread=0.9) == [1, 1, 1]
    lengths = [10, 20, 30, 40, 50]
    assert contexts_like(lengths, 3) == [30, 20, 40]
    assert np.mean(contexts_like(lengths, 63)) == pytest.approx(30, abs=0.1)
