"""One poll of a server: what it accepts against what its drafter was promoted with; the state is in the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import ValidationError

from specflow.config.root import Config
from specflow.workflow.drift import Reading, Verdict, WatchState, judge, of_drafter
from specflow.workflow.promotion import DrafterRegistry
from specflow.workflow.store import ArtifactStore

FOLDER = ".watch"

Read = Callable[[Mapping[str, Any] | None], Reading]
"""Asks the server; given the reading that the window begins at, as JSON."""


class NothingToCompare(Exception):
    """Neither is a tau given nor was a drafter promoted with one."""


def poll(config: Config, store: ArtifactStore, read: Read) -> Verdict:
    """Read once and judge; the verdict ``retrain`` is given once, and is on disk before it is returned.

    Raises ``NothingToCompare``, and what ``read`` raises; the state is then as before.
    """
    drafter, expected = _expected(config, store)
    path = store.root / FOLDER / f"{config.gate.service}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        state = of_drafter(_state(path), drafter)
        state, verdict = judge(state, read(state.reading), config.watch, expected=expected)
        partial = path.with_suffix(".partial")
        partial.write_text(state.model_dump_json(indent=1), encoding="utf-8")
        partial.replace(path)
    return verdict


def _expected(config: Config, store: ArtifactStore) -> tuple[str, float]:
    """Whose tau, and how large it should be."""
    promoted = DrafterRegistry(store).promoted(config.gate.service)
    tau = config.watch.tau or (promoted.figures.get("tau") if promoted else None)
    if tau is None:
        raise NothingToCompare(
            f"no drafter of service {config.gate.service!r} was promoted with a tau: set watch.tau, or run the flow "
            "retrain first"
        )
    return promoted.drafter if promoted else "", float(tau)


def _state(path: Path) -> WatchState:
    """An unreadable state is none: the fall is then counted from the next reading on."""
    try:
        return WatchState.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return WatchState()
