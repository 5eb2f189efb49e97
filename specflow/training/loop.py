"""The training loop, the same for every method and any number of ranks; exact to resume."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from specflow.config.drafter import DrafterParams
from specflow.drafters.registry import Method
from specflow.drafters.training import Progress, Source
from specflow.training import optimizers
from specflow.training.checkpoint import Progressed, load_best_into, load_checkpoint, save_best, save_checkpoint
from specflow.training.curve import Curve
from specflow.training.data import Documents, sources_of_step
from specflow.training.ema import Ema, applied
from specflow.training.estimate import describe_pass, describe_peak, describe_time
from specflow.training.frozen import FrozenEnds
from specflow.training.guards import Guards
from specflow.training.heldout import Heldout
from specflow.training.objective import Objective
from specflow.training.ranks import Ranks
from specflow.training.recording import CURVE, Recorder
from specflow.training.schedule import rate as scheduled_rate
from specflow.training.sharding import Wrapped
from specflow.training.step import StepSums, accumulate_gradients
from specflow.training.tensors import whole

TRIAL_FROM = 50
"""Steps of a run that is worth two steps' gradients to tell its time."""


class Bar(Protocol):
    def advance(self, amount: float = 1) -> None: ...
    def describe(self, text: str) -> None: ...
    def figures(self, values: Mapping[str, float]) -> None: ...


class Monitor(Protocol):
    """Where progress and messages go; a stage's context is one."""

    def log(self, message: str) -> None: ...
    def progress(self, description: str, *, total: float, unit: str = "rows") -> AbstractContextManager[Bar]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    state: Progressed
    curve: Path
    best: dict[str, Any] | None
    """Evaluation of the returned weights; none without held-out documents."""


class Trainer:
    """Trains ``network`` in place; after ``run`` it holds the weights that walked best on held-out documents.

    ``scratch`` survives a kill: the next ``run`` with the same arguments continues from the newest checkpoint, also
    with another number of ranks, and ends, on a CPU in fp32 with as many ranks, with the same bits as an
    uninterrupted one. Every rank makes one of these; only the first writes and speaks.
    """

    def __init__(
        self,
        *,
        method: Method,
        network: nn.Module,
        ends: FrozenEnds,
        documents: Documents,
        train: Sequence[int],
        heldout: Sequence[int],
        params: DrafterParams,
        scratch: Path,
        monitor: Monitor,
        ranks: Ranks | None = None,
        autocast: bool = False,
        name: str = "train",
    ) -> None:
        self._ranks = ranks or Ranks()
        self._network, self._documents, self._train = network, documents, list(train)
        self._params, self._autocast = params.train, autocast
        self._softmax_rows = ends.head_RH.shape[0]
        self._scratch, self._monitor, self._name = scratch, monitor, name
        scratch.mkdir(parents=True, exist_ok=True)
        texts = [documents.get(place) for place in heldout] if self._ranks.first else []
        self._heldout = Heldout(method, network, ends, params, texts=texts, present=bool(heldout), ranks=self._ranks)
        self._learner = method.build_learner(network, ends, params)
        self._wrapped = Wrapped(Objective(self._learner), ranks=self._ranks, parallel=self._params.parallel)
        if self._params.compile:
            network.compile()
        # After the wrapping: parameters may have become parts of themselves.
        self._optimizers = optimizers.build(network, self._params)
        self._ema = Ema.build(network, self._params)
        self._guards = Guards(self._params, scratch=scratch, note=monitor.log)

    def run(self) -> Outcome:
        """Raises ``TrainingDiverged`` after too many non-finite steps in a row."""
        note, ranks = self._monitor.log, self._ranks
        state = load_checkpoint(self._scratch, self._network, self._optimizers, self._ema, note=note)
        if state:
            note(f"training continues after step {state.step}")
        state = state or Progressed()
        ranks.agree("the step of the checkpoint", state.step)
        recorder = self._recorder(state)
        started = time.perf_counter() - state.seconds
        with self._monitor.progress("train", total=self._params.steps, unit="steps") as bar:
            bar.advance(state.step)
            if state.step == 0:
                self._trial()
                self._evaluate(state, recorder)
            while state.step < self._params.steps:
                sums, norm, rate = self._one_step(state)
                state.seconds = time.perf_counter() - started
                self._after_step(state, recorder, sums, rate=rate, norm=norm)
                bar.advance()
                bar.figures(_figures(state, sums))
        if recorder:
            recorder.close()
        return self._finish(state)

    def _recorder(self, state: Progressed) -> Recorder | None:
        if not self._ranks.first:
            return None
        return Recorder(self._scratch, self._params, finished=state.step, run=self._name, note=self._monitor.log)

    def _trial(self) -> None:
        """Say what a step costs before the first one, from its gradients, which are thrown away."""
        if self._params.steps < TRIAL_FROM:
            return
        held = describe_pass(
            self._learner,
            self._sources(0),
            documents_per_pass=self._params.documents_per_pass,
            softmax_rows=self._softmax_rows,
        )
        if held:
            self._monitor.log(held)
        self._gradients(0)  # opens files and fills caches
        started = time.perf_counter()
        self._gradients(0)
        seconds = time.perf_counter() - started
        self._optimizers.zero_grad()
        self._monitor.log(f"{describe_time(seconds, self._params.steps)}; {describe_peak(self._ranks.device)}")

    def _gradients(self, step: int) -> StepSums:
        p, ranks = self._params, self._ranks
        self._optimizers.zero_grad()
        return accumulate_gradients(
            self._wrapped,
            self._learner,
            self._sources(step),
            progress=Progress(step, p.steps),
            ranks=ranks,
            documents_per_pass=p.documents_per_pass,
            autocast=self._autocast,
        )

    def _sources(self, step: int) -> list[Source]:
        ranks = self._ranks
        return sources_of_step(self._documents, self._train, self._params, step=step, rank=ranks.rank, ranks=ranks.size)

    def _one_step(self, state: Progressed) -> tuple[StepSums, float, float]:
        p = self._params
        rate = scheduled_rate(state.step, p)
        self._optimizers.set_rate(rate)
        sums = self._gradients(state.step)
        norm = 0.0
        if sums.trained:
            clipped = torch.nn.utils.clip_grad_norm_(self._network.parameters(), p.clip_norm)
            norm = float(whole(clipped))
            self._apply(state, sums, norm)
        else:
            self._guards.without_data(state, sums)
        state.step += 1
        state.anchors += sums.counts.anchors
        state.labels += sums.counts.labels
        state.context_rows += sums.counts.context_rows
        state.documents_without_anchor += sums.documents_without_anchor
        return sums, norm, rate

    def _apply(self, state: Progressed, sums: StepSums, norm: float) -> None:
        if not self._guards.accepts(state, sums, norm):
            return
        self._optimizers.step()
        if self._ema:
            self._ema.update(self._network)
        for name in sums.weights:
            before = state.window.get(name, [0.0, 0.0])
            state.window[name] = [before[0] + sums.numerators[name], before[1] + sums.denominators[name]]

    def _after_step(
        self, state: Progressed, recorder: Recorder | None, sums: StepSums, *, rate: float, norm: float
    ) -> None:
        p, last = self._params, state.step == self._params.steps
        if (last or state.step % p.log_every == 0) and state.window:
            terms = {name: numerator / d for name, (numerator, d) in state.window.items() if d > 0}
            state.last_loss = sum(sums.weights[name] * value for name, value in terms.items())
            state.window = {}
            if recorder:
                parts = {f"loss_{name}": value for name, value in terms.items()} if len(terms) > 1 else {}
                line = {"loss": state.last_loss, **parts, "lr": rate, "grad_norm": norm, "seconds": state.seconds}
                recorder.add(step=state.step, **line, **_rates(state))
        if last or state.step % p.evaluate_every == 0:
            self._evaluate(state, recorder)
        if last or state.step % p.checkpoint_every == 0:
            save_checkpoint(self._scratch, self._network, self._optimizers, state, self._ema, write=self._ranks.first)

    def _evaluate(self, state: Progressed, recorder: Recorder | None) -> None:
        """Walk the held-out documents; keep the weights if no earlier ones walked better."""
        if not self._heldout.present:
            return
        with applied(self._ema, self._network):
            tau, found = self._heldout.evaluate(self._network)
            if tau > state.best_tau:
                state.best_tau, state.best_step = tau, state.step
                save_best(self._scratch, self._network, state.step, write=self._ranks.first)
        if recorder and found:
            recorder.add(step=state.step, seconds=state.seconds, **found.to_dict())
            kinds = ", ".join(f"{kind} {sums.tau:.2f}" for kind, sums in sorted(found.by_kind.items()))
            self._monitor.log(f"step {state.step}: held-out tau {tau:.3f} ({kinds})")

    def _finish(self, state: Progressed) -> Outcome:
        self._ranks.wait()  # for the files of the first
        curve = self._scratch / CURVE
        if state.best_step < 0:
            state.best_step = state.step
            if self._ema:
                self._ema.fill(self._network)
            return Outcome(state=state, curve=curve, best=None)
        load_best_into(self._network, self._scratch, state.best_step)
        found = Curve(curve, finished=state.step).evaluation(state.best_step) if self._ranks.first else None
        return Outcome(state=state, curve=curve, best=found)


def _rates(state: Progressed) -> dict[str, float]:
    seconds = max(state.seconds, 1e-9)
    return {"anchors_per_second": state.anchors / seconds, "context_tokens_per_second": state.context_rows / seconds}


def _figures(state: Progressed, sums: StepSums) -> dict[str, float]:
    rates = _rates(state)
    return {
        "loss": sums.loss,
        "best tau": max(state.best_tau, 0.0),
        "tokens/s": rates["context_tokens_per_second"],
        "anchors/s": rates["anchors_per_second"],
    }
