"""The training loop: AdamW, warm-up and cosine, clipping, a guard against non-finite steps, exact resume."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from specflow.config.drafter import TrainParams
from specflow.drafters.dflash.network import DFlashNetwork
from specflow.training import optimizers
from specflow.training.checkpoint import (
    Progressed,
    load_best_into,
    load_checkpoint,
    newest,
    save_best,
    save_checkpoint,
)
from specflow.training.data import Documents, documents_of_step, source_of
from specflow.training.ema import Ema, applied
from specflow.training.evaluate import evaluate
from specflow.training.evaluation import Evaluation
from specflow.training.frozen import FrozenEnds
from specflow.training.recording import Recorder
from specflow.training.schedule import rate as scheduled_rate
from specflow.training.step import StepSums, accumulate_gradients

SKIPS_IN_A_ROW = 10
"""Non-finite steps after each other that end the run."""


class Bar(Protocol):
    def advance(self, amount: float = 1) -> None: ...
    def describe(self, text: str) -> None: ...
    def figures(self, values: Mapping[str, float]) -> None: ...


class Monitor(Protocol):
    """Where progress and messages go; a stage's context is one."""

    def log(self, message: str) -> None: ...
    def progress(self, description: str, *, total: float, unit: str = "rows") -> AbstractContextManager[Bar]: ...


class TrainingDiverged(RuntimeError):
    """Loss or gradient stayed non-finite; the last good checkpoint is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    state: Progressed
    curve: Path
    best: dict[str, Any] | None
    """Evaluation of the returned weights; none without held-out documents."""


class Trainer:
    """Trains ``network`` in place; after ``run`` it holds the weights that walked best on held-out documents.

    ``scratch`` survives a kill: the next ``run`` with the same arguments continues from the newest checkpoint and
    ends, on a CPU in fp32, with the same bits as an uninterrupted one.
    """

    def __init__(
        self,
        *,
        network: DFlashNetwork,
        frozen: FrozenEnds,
        documents: Documents,
        train: Sequence[int],
        heldout: Sequence[int],
        params: TrainParams,
        decay: float,
        scratch: Path,
        monitor: Monitor,
        autocast: bool = False,
        name: str = "train",
    ) -> None:
        self._network, self._frozen, self._documents = network, frozen, documents
        self._train, self._heldout = list(train), list(heldout)
        self._params, self._decay, self._autocast = params, decay, autocast
        self._scratch, self._monitor = scratch, monitor
        scratch.mkdir(parents=True, exist_ok=True)
        self._name = name
        self._optimizers = optimizers.build(network, params)
        self._ema = Ema.build(network, params)

    def run(self) -> Outcome:
        """Raises ``TrainingDiverged`` after ten non-finite steps in a row."""
        note = self._monitor.log
        state = load_checkpoint(self._scratch, self._network, self._optimizers, self._ema, note=note)
        if state:
            note(f"training continues after step {state.step}")
        state = state or Progressed()
        recorder = Recorder(self._scratch, self._params, finished=state.step, run=self._name, note=note)
        started = time.perf_counter() - state.seconds
        with self._monitor.progress("train", total=self._params.steps, unit="steps") as bar:
            bar.advance(state.step)
            if state.step == 0:
                self._evaluate(state, recorder)
            while state.step < self._params.steps:
                sums, norm, rate = self._one_step(state)
                state.seconds = time.perf_counter() - started
                self._after_step(state, recorder, rate=rate, norm=norm)
                bar.advance()
                bar.figures(_figures(state, sums))
        recorder.close()
        return self._finish(state, recorder)

    def _one_step(self, state: Progressed) -> tuple[StepSums, float, float]:
        p = self._params
        rate = scheduled_rate(state.step, p)
        self._optimizers.set_rate(rate)
        chosen = documents_of_step(state.step, count=len(self._train), per_step=p.documents_per_step, seed=p.seed)
        sources = [
            source_of(self._documents.get(self._train[place]), anchors=p.anchors_per_document, seed=p.seed, epoch=epoch)
            for epoch, place in chosen
        ]
        self._optimizers.zero_grad()
        sums = accumulate_gradients(
            self._network,
            sources,
            self._frozen,
            decay=self._decay,
            soft_targets=p.soft_targets,
            documents_per_pass=p.documents_per_pass,
            autocast=self._autocast,
        )
        norm = 0.0
        if sums.blocks:
            norm = float(torch.nn.utils.clip_grad_norm_(self._network.parameters(), p.clip_norm))
            self._apply(state, sums, norm)
        state.step += 1
        state.blocks += sums.blocks
        state.labels += sums.labels
        state.context_rows += sums.context_rows
        state.documents_without_anchor += sums.documents_without_anchor
        return sums, norm, rate

    def _apply(self, state: Progressed, sums: StepSums, norm: float) -> None:
        if math.isfinite(sums.weighted_loss) and math.isfinite(norm):
            self._optimizers.step()
            if self._ema:
                self._ema.update(self._network)
            state.window_loss += sums.weighted_loss
            state.window_weight += sums.weight
            state.skipped_in_a_row = 0
            return
        state.skipped += 1
        state.skipped_in_a_row += 1
        self._monitor.log(f"step {state.step + 1} skipped: loss {sums.weighted_loss}, gradient norm {norm}")
        if state.skipped_in_a_row >= SKIPS_IN_A_ROW:
            raise TrainingDiverged(
                f"expected finite loss and gradient, found {SKIPS_IN_A_ROW} non-finite steps in a row up to step "
                f"{state.step + 1}; lower train.learning_rate, or check the features for non-finite rows; the last "
                f"good checkpoint is {newest(self._scratch) or 'none'}"
            )

    def _after_step(self, state: Progressed, recorder: Recorder, *, rate: float, norm: float) -> None:
        p, last = self._params, state.step == self._params.steps
        if (last or state.step % p.log_every == 0) and state.window_weight:
            state.last_loss = state.window_loss / state.window_weight
            state.window_loss = state.window_weight = 0.0
            line = {"step": state.step, "loss": state.last_loss, "lr": rate, "grad_norm": norm}
            recorder.add(**line, seconds=state.seconds, **_rates(state))
        if last or state.step % p.evaluate_every == 0:
            self._evaluate(state, recorder)
        if last or state.step % p.checkpoint_every == 0:
            save_checkpoint(self._scratch, self._network, self._optimizers, state, self._ema)

    def _evaluate(self, state: Progressed, recorder: Recorder) -> Evaluation | None:
        """Walk the held-out documents; keep the weights if no earlier ones walked better."""
        if not self._heldout:
            return None
        with applied(self._ema, self._network):
            found = evaluate(self._network, [self._documents.get(p) for p in self._heldout], self._frozen)
            if found.walk.tau > state.best_tau:
                state.best_tau, state.best_step = found.walk.tau, state.step
                save_best(self._scratch, self._network, state.step)
        recorder.add(step=state.step, seconds=state.seconds, **found.to_dict())
        kinds = ", ".join(f"{kind} {sums.tau:.2f}" for kind, sums in sorted(found.by_kind.items()))
        self._monitor.log(f"step {state.step}: held-out tau {found.walk.tau:.3f} ({kinds})")
        return found

    def _finish(self, state: Progressed, recorder: Recorder) -> Outcome:
        curve = recorder.curve
        if state.best_step < 0:
            state.best_step = state.step
            if self._ema:
                self._ema.fill(self._network)
            return Outcome(state=state, curve=curve.path, best=None)
        load_best_into(self._network, self._scratch, state.best_step)
        return Outcome(state=state, curve=curve.path, best=curve.evaluation(state.best_step))


def _rates(state: Progressed) -> dict[str, float]:
    seconds = max(state.seconds, 1e-9)
    return {"anchors_per_second": state.blocks / seconds, "context_tokens_per_second": state.context_rows / seconds}


def _figures(state: Progressed, sums: StepSums) -> dict[str, float]:
    rates = _rates(state)
    return {
        "loss": sums.weighted_loss / sums.weight if sums.weight else 0.0,
        "best tau": max(state.best_tau, 0.0),
        "tokens/s": rates["context_tokens_per_second"],
        "anchors/s": rates["anchors_per_second"],
    }
