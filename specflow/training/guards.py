"""What is watched while a drafter trains. Every rank sees the same sums, so every rank decides the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from specflow.config.drafter import TrainParams
from specflow.training.checkpoint import Progressed, newest
from specflow.training.step import StepSums

MEMORY = 0.9
"""Of the running mean of the loss: about the last ten steps."""


class TrainingDiverged(RuntimeError):
    """Loss or gradient stayed non-finite; the last good checkpoint is kept."""


class Guards:
    """Skips steps that are not finite, ends a run of them, and warns of a loss that grows or a step without data."""

    def __init__(self, params: TrainParams, *, scratch: Path, note: Callable[[str], None]) -> None:
        self._params, self._scratch, self._note = params, scratch, note

    def accepts(self, state: Progressed, sums: StepSums, norm: float) -> bool:
        """Whether the step may be applied. Raises ``TrainingDiverged`` after ``skip_limit`` that may not."""
        if math.isfinite(sums.loss) and math.isfinite(norm):
            state.skipped_in_a_row = 0
            self._watch(state, sums.loss)
            return True
        state.skipped += 1
        state.skipped_in_a_row += 1
        self._note(f"step {state.step + 1} skipped: loss {sums.loss}, gradient norm {norm}")
        if state.skipped_in_a_row >= self._params.skip_limit:
            kept = newest(self._scratch)
            raise TrainingDiverged(
                f"expected finite loss and gradient, found {state.skipped_in_a_row} non-finite steps in a row up to "
                f"step {state.step + 1}; lower train.learning_rate, or check the features for non-finite rows; the "
                f"last good checkpoint is {kept or 'none yet'}"
            )
        return False

    def without_data(self, state: Progressed, sums: StepSums) -> None:
        """The step has nothing to train on: said at the 1st, 2nd, 4th, 8th .. such step."""
        state.steps_without_anchor += 1
        if state.steps_without_anchor & (state.steps_without_anchor - 1) == 0:
            self._note(
                f"warning: step {state.step + 1} has no anchor in any of its {sums.documents} documents and changes "
                f"nothing ({state.steps_without_anchor} such steps so far); documents need two supervised tokens in "
                "a row"
            )

    def _watch(self, state: Progressed, loss: float) -> None:
        mean = loss if state.mean_loss is None else MEMORY * state.mean_loss + (1.0 - MEMORY) * loss
        state.mean_loss = mean
        state.best_mean_loss = mean if state.best_mean_loss is None else min(mean, state.best_mean_loss)
        grown = mean > self._params.divergence * max(state.best_mean_loss, 1e-9)
        if grown and not state.diverging:
            self._note(
                f"warning: the loss grows: a mean of {mean:.3f} around step {state.step + 1}, "
                f"{state.best_mean_loss:.3f} at its best; a lower train.learning_rate or more warm-up may help"
            )
        state.diverging = grown
