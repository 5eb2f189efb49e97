"""Learning rates against their closed forms; a longer schedule at resume."""

from __future__ import annotations

import math
from typing import Any

import pytest

from specflow.config.drafter import TrainParams
from specflow.training.schedule import decay_start, rate


def rates(**options: Any) -> list[float]:
    params = TrainParams(**{"learning_rate": 2.0, **options})
    return [rate(step, params) for step in range(params.steps)]


def test_warm_up_and_cosine() -> None:
    found = rates(steps=10, warmup=0.3)
    assert found[:3] == pytest.approx([2 / 3, 4 / 3, 2.0])
    assert found[3:] == pytest.approx([1.0 + math.cos(math.pi * i / 7) for i in range(7)])
    assert rates(steps=5, warmup=0.0)[0] == 2.0


def test_cosine_to_a_final_rate() -> None:
    found = rates(steps=8, warmup_steps=0, final_rate=0.25)
    assert found == pytest.approx([2 * (0.25 + 0.75 * 0.5 * (1 + math.cos(math.pi * i / 8))) for i in range(8)])


def test_warm_up_stable_decay() -> None:
    found = rates(schedule="wsd", steps=20, warmup_steps=4, decay=0.25)
    assert found[:4] == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert found[4:15] == [2.0] * 11
    assert found[15:] == pytest.approx([2 * (1 - math.sqrt(k / 6)) for k in range(1, 6)])
    assert found[-1] > 0  # no step is wasted
    lifted = rates(schedule="wsd", steps=20, warmup_steps=4, decay=0.25, final_rate=0.1)
    assert lifted[15:] == pytest.approx([2 * (0.1 + 0.9 * (1 - math.sqrt(k / 6))) for k in range(1, 6)])


def test_decay_begins_after_the_warm_up() -> None:
    params = TrainParams(schedule="wsd", steps=10, warmup=0.6, decay=0.8)
    assert decay_start(params) == 6
    assert [rate(s, params) for s in range(6)] == pytest.approx([params.learning_rate * (s + 1) / 6 for s in range(6)])


def test_constant_after_warm_up() -> None:
    assert rates(schedule="constant", steps=6, warmup=0.5) == pytest.approx([2 / 3, 4 / 3, 2, 2, 2, 2])


@pytest.mark.parametrize("schedule", ["constant", "wsd"])
def test_a_longer_schedule_agrees_up_to_the_decay(schedule: Any) -> None:
    short, long = (rates(schedule=schedule, steps=n, warmup_steps=3, decay=0.2) for n in (20, 50))
    same = 20 if schedule == "constant" else 16
    assert short[:same] == long[:same]
    assert (short[same:] == long[same:20]) == (schedule == "constant")
