"""One stage in a process of its own: ``python -m specflow.workflow.worker SPEC DESCRIPTOR``.

The memory of a stage is returned when it ends, a crash cannot take the run with it, and all that it prints goes
to its log.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from filelock import Timeout
from pydantic import BaseModel

from specflow.stages.contract import Inputs, Progress, StageError, StageModule
from specflow.stages.running import run_stage
from specflow.workflow.commit import Attempt, Recipe
from specflow.workflow.events import Sender
from specflow.workflow.history import by_name, changes
from specflow.workflow.keys import key_parameters
from specflow.workflow.orphans import die_with_parent
from specflow.workflow.policies import by_accident
from specflow.workflow.store import ArtifactStore

PROGRESS_SECONDS = 0.1
SHOWN = 4


class Work(BaseModel):
    """What the process is to do, as a file that can be looked at afterwards."""

    module: str
    """Module of the stage."""
    params_class: str
    """``module:qualified.name`` of the parameters' model."""
    params_json: str
    recipe: Recipe
    inputs: list[tuple[str, str]]
    store: Path

    def params(self) -> BaseModel:
        module, _, name = self.params_class.partition(":")
        value: Any = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
        return cast(type[BaseModel], value).model_validate_json(self.params_json)


class WorkerContext:
    """The stage's ``Context``: directories of the attempt, messages to the console and the log."""

    def __init__(self, attempt: Attempt, *, key: str, item: str | None, sender: Sender) -> None:
        self._attempt, self._key, self._item, self._sender = attempt, key, item, sender
        self._numbers = itertools.count()

    @property
    def key(self) -> str:
        return self._key

    @property
    def output(self) -> Path:
        return self._attempt.output

    @property
    def scratch(self) -> Path:
        return self._attempt.scratch

    @property
    def item(self) -> str | None:
        return self._item

    def log(self, message: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {message}", flush=True)
        self._sender.send("log", message=message)

    @contextmanager
    def progress(self, description: str, *, total: float, unit: str = "rows") -> Iterator[Progress]:
        number = next(self._numbers)
        self._sender.send("progress_start", number=number, description=description, total=total, unit=unit)
        bar = _Progress(number, self._sender)
        started = time.monotonic()
        try:
            yield bar
        finally:
            bar.flush()
            self._sender.send("progress_end", number=number)
            seconds = time.monotonic() - started
            print(
                f"{time.strftime('%H:%M:%S')} {description}: {bar.done:g}/{total:g} {unit} in {seconds:.1f} s",
                flush=True,
            )


class _Progress:
    def __init__(self, number: int, sender: Sender) -> None:
        self.done: float = 0
        self._number, self._sender, self._note, self._sent = number, sender, "", 0.0
        self._figures: dict[str, float] = {}

    def advance(self, amount: float = 1) -> None:
        self.done += amount
        self._maybe_send()

    def describe(self, text: str) -> None:
        self._note = text
        self._maybe_send()

    def figures(self, values: Mapping[str, float]) -> None:
        self._figures = dict(values)
        self._maybe_send()

    def _maybe_send(self) -> None:
        if time.monotonic() - self._sent >= PROGRESS_SECONDS:
            self.flush()

    def flush(self) -> None:
        self._sent = time.monotonic()
        self._sender.send("progress", number=self._number, done=self.done, note=self._note, figures=self._figures)


def perform(work: Work, sender: Sender) -> None:
    """Make the artifact, or find that another process just made it."""
    store = ArtifactStore(work.store)
    recipe = work.recipe
    lock = store.lock(recipe.kind, recipe.key)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        sender.send("waiting")
    with lock:
        if store.exists(recipe.kind, recipe.key):
            damage = store.verify_key(recipe.kind, recipe.key)
            problems = damage or store.outdated(recipe.kind, recipe.key)
            if not problems:
                sender.send("cached")
                return
            event = "damaged" if damage else "outdated"
            sender.send(event, problems=problems, path=str(store.quarantine(recipe.kind, recipe.key)))
        attempt = Attempt(store, recipe)
        # Before the stage reads them: were an input replaced meanwhile, the artifact would rather count as outdated.
        records = (store.record(kind, key) for kind, key in work.inputs)
        digests = {f"{record.kind}/{record.key}": record.content_digest for record in records if record}
        attempt.prepare(digests)
        metrics = _run(work, store, WorkerContext(attempt, key=recipe.key, item=recipe.item, sender=sender))
        attempt.commit(metrics)
        sender.send("made")


def _run(work: Work, store: ArtifactStore, context: WorkerContext) -> Mapping[str, Any]:
    found = [(kind, key, store.find(kind, key)) for kind, key in work.inputs]
    missing = [f"{kind}/{key[:12]}" for kind, key, artifact in found if artifact is None]
    if missing:
        raise StageError(f"inputs are not in the store {store.root}: {', '.join(missing)}; run the flow again")
    inputs = Inputs(tuple(artifact for _, _, artifact in found if artifact is not None))
    module = cast(StageModule, importlib.import_module(work.module))
    params = work.params()
    metrics = run_stage(module, inputs, params, context)
    files = list(module.files(params))
    if files:
        _require_unchanged(work.recipe, params, files)
    return metrics


def _require_unchanged(recipe: Recipe, params: BaseModel, files: list[Path]) -> None:
    """The artifact's key names the content of files outside the store; what was read must be what it names."""
    try:
        now = key_parameters(params, files)
    except OSError as error:
        raise StageError(f"a file that {recipe.stage!r} reads is gone: {error}; nothing was kept") from error
    changed = list(changes(by_name(recipe.key_parameters), by_name(now)))
    if changed:
        raise StageError(
            f"files that {recipe.stage!r} reads were changed after the run was planned: {', '.join(changed[:SHOWN])}; "
            "nothing was kept: run again"
        )


def main(arguments: list[str]) -> int:
    spec, descriptor = Path(arguments[0]), int(arguments[1])
    die_with_parent()
    os.set_inheritable(descriptor, False)
    sender = Sender(descriptor)
    try:
        perform(Work.model_validate_json(spec.read_bytes()), sender)
    except StageError as error:
        print(f"error: {error}", flush=True)
        sender.send("error", message=str(error))
        return 1
    except Exception as error:
        traceback.print_exc()
        sender.send("error", message=f"{type(error).__name__}: {error}", accident=by_accident(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
