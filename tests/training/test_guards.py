"""What is watched during training: steps that are not finite, a loss that grows, steps without data."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from specflow.config.drafter import TrainParams
from specflow.drafters.training import Counts
from specflow.training.checkpoint import Progressed
from specflow.training.guards import Guards, TrainingDiverged
from specflow.training.step import StepSums


def sums(loss: float, denominator: float = 2.0) -> StepSums:
    return StepSums(
        numerators={"a": loss * denominator},
        denominators={"a": denominator},
        weights={"a": 1.0},
        counts=Counts(anchors=1, labels=1, context_rows=1),
        documents=3,
        documents_without_anchor=0,
    )


def guards(tmp_path: Path, **changes: float) -> tuple[Guards, list[str]]:
    notes: list[str] = []
    return Guards(TrainParams(**changes), scratch=tmp_path, note=notes.append), notes


def test_skips_are_counted_forgiven_after_a_good_step_and_end_the_run(tmp_path: Path) -> None:
    guard, notes = guards(tmp_path, skip_limit=3)
    state = Progressed(step=4)
    assert not guard.accepts(state, sums(math.nan), 1.0)
    assert not guard.accepts(state, sums(1.0), math.inf)
    assert guard.accepts(state, sums(1.0), 1.0)
    assert (state.skipped, state.skipped_in_a_row) == (2, 0)
    assert notes == ["step 5 skipped: loss nan, gradient norm 1.0", "step 5 skipped: loss 1.0, gradient norm inf"]
    assert not guard.accepts(state, sums(math.inf), 1.0)
    assert not guard.accepts(state, sums(math.nan), math.nan)
    (tmp_path / "step-00000003.safetensors").touch()
    with pytest.raises(TrainingDiverged, match=r"3 non-finite steps in a row up to step 5.*step-00000003.safetensors"):
        guard.accepts(state, sums(math.nan), 1.0)
    assert state.skipped == 5


def test_a_growing_loss_is_told_once_per_excursion(tmp_path: Path) -> None:
    guard, notes = guards(tmp_path, divergence=2.0)
    state, means = Progressed(), []
    mean = None
    losses = [4.0, 2.0, 1.0] + [0.5] * 40 + [3.0] * 30 + [0.5] * 60 + [9.0] * 10
    warned = []
    for step, loss in enumerate(losses):
        mean = loss if mean is None else 0.9 * mean + 0.1 * loss
        means.append(mean)
        state.step = step
        assert guard.accepts(state, sums(loss), 1.0)
        warned.append(len(notes))
        assert state.diverging == (mean > 2.0 * min(means))
    first = next(i for i, n in enumerate(warned) if n == 1)
    assert 43 < first < 73
    assert warned[-1] == 2
    assert "the loss grows: a mean of" in notes[0]


def test_steps_without_data_are_told_ever_more_rarely(tmp_path: Path) -> None:
    guard, notes = guards(tmp_path)
    state = Progressed()
    for _ in range(20):
        guard.without_data(state, sums(0.0, 0.0))
    assert state.steps_without_anchor == 20
    assert len(notes) == 5  # 1, 2, 4, 8, 16
    assert "no anchor in any of its 3 documents" in notes[0]
