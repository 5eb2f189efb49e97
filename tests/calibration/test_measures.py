"""ECE, Brier and AUC against their definitions, written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specflow.calibration.measures import (
    BINS,
    area_under_curve,
    brier_score,
    expected_calibration_error,
    reliability,
)

ROUNDS = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40)


@settings(max_examples=200, deadline=None)
@given(ROUNDS)
def test_against_the_definitions(rounds: list[tuple[float, bool]]) -> None:
    probability, happened = np.array([p for p, _ in rounds]), np.array([h for _, h in rounds])
    bins: dict[int, list[tuple[float, bool]]] = {}
    for p, h in rounds:
        clamped = min(max(p, 1e-8), 1 - 1e-8)
        bins.setdefault(min(int(clamped * BINS), BINS - 1), []).append((clamped, h))
    expected = sum(
        len(b) * abs(sum(p for p, _ in b) / len(b) - sum(h for _, h in b) / len(b)) for b in bins.values()
    ) / len(rounds)
    assert expected_calibration_error(probability, happened) == pytest.approx(expected, abs=1e-12)
    assert brier_score(probability, happened) == pytest.approx(sum((p - h) ** 2 for p, h in rounds) / len(rounds))
    pairs = [1.0 if p > q else 0.5 if p == q else 0.0 for p, hp in rounds if hp for q, hq in rounds if not hq]
    area = area_under_curve(probability, happened)
    assert area == (pytest.approx(sum(pairs) / len(pairs)) if pairs else None)
    found = reliability(probability, happened)
    assert [b.rounds for b in found] == [len(bins.get(i, [])) for i in range(BINS)]
    assert sum(b.happened * b.rounds for b in found if b.happened is not None) == pytest.approx(sum(happened))


def test_worked_values() -> None:
    """Two bins by hand: 0.1, 0.2 of which one happens; 0.9 which happens."""
    probability, happened = np.array([0.61, 0.62, 0.9]), np.array([True, False, True])
    assert expected_calibration_error(probability, happened) == pytest.approx((2 * abs(0.615 - 0.5) + 0.1) / 3)
    assert math.isnan(expected_calibration_error(np.array([]), np.array([], dtype=bool)))
    assert expected_calibration_error(np.array([1.0, 0.0]), np.array([True, False])) == pytest.approx(1e-8)
