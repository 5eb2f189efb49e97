"""Scripted readings: a fall must last, must be large, ends above the recovery, and is answered once in a while."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specflow.cli import watch
from specflow.config.loading import load_config
from specflow.config.overrides import parse_overrides
from specflow.config.root import Config
from specflow.config.watch import WatchParams
from specflow.targets.retrying import ServerError
from specflow.workflow.drift import WatchState, judge
from specflow.workflow.promotion import DrafterRegistry, Event, now
from specflow.workflow.results import RunResult
from specflow.workflow.store import ArtifactStore
from specflow.workflow.watching import NothingToCompare, poll
from tests.cli.support import document, specflow
from tests.config.support import write

PARAMS = WatchParams(margin=0.1, recovery=0.05, seconds=100, cool_down=1000, least_rounds=50)
EXPECTED = 2.0  # a fall begins below 1.8 and ends at 1.9


@dataclass
class Scripted:
    at: float
    tau: float | None
    rounds: float | None = 500
    restarted: bool = False

    def as_json(self) -> dict[str, Any]:
        return {"at": self.at}


def findings(*readings: Scripted, params: WatchParams = PARAMS) -> list[str]:
    state, found = WatchState(), []
    for reading in readings:
        state, verdict = judge(state, reading, params, expected=EXPECTED)
        state = WatchState.model_validate_json(state.model_dump_json())  # as between two polls
        found.append(verdict.finding)
    return found


def test_a_fall_must_last() -> None:
    assert findings(Scripted(0, 2.1), Scripted(50, 1.7), Scripted(100, 1.7), Scripted(149, 1.6)) == [
        "as measured", "below", "below", "below",
    ]  # fmt: skip
    assert findings(Scripted(50, 1.7), Scripted(149, 1.7), Scripted(150, 1.7))[-1] == "retrain"
    immediate = PARAMS.model_copy(update={"seconds": 0})
    assert findings(Scripted(5, 1.7), params=immediate) == ["retrain"]


def test_a_fall_within_the_margin_is_none() -> None:
    assert set(findings(*(Scripted(60 * i, 1.81) for i in range(9)))) == {"as measured"}


def test_a_tau_that_wavers_between_margin_and_recovery_does_not_end_a_fall() -> None:
    assert findings(Scripted(0, 1.7), Scripted(60, 1.85), Scripted(100, 1.85)) == ["below", "below", "retrain"]
    assert findings(Scripted(0, 1.7), Scripted(60, 1.9), Scripted(100, 1.7)) == ["below", "as measured", "below"]


def test_it_fires_once_and_again_only_after_the_cool_down() -> None:
    readings = [Scripted(100.0 * i, 1.5) for i in range(14)]
    found = findings(*readings)
    assert found[1] == "retrain"
    assert found[2] == "below"
    assert set(found[3:11]) == {"cooling down"}
    assert found[11] == "retrain", "1000 s after the first, the fall having lasted"
    assert found.count("retrain") == 2


def test_too_few_rounds_say_nothing_and_their_window_grows() -> None:
    state, verdict = judge(WatchState(), Scripted(10, 1.0, rounds=5), PARAMS, expected=EXPECTED)
    assert verdict.reason == "5 rounds, 50 are needed"
    assert state.reading == {"at": 10}, "the first window begins at the first reading"
    state, _ = judge(state, Scripted(20, 1.0, rounds=20), PARAMS, expected=EXPECTED)
    assert state.reading == {"at": 10}, "the window grows"
    state, verdict = judge(state, Scripted(30, 1.0, rounds=60), PARAMS, expected=EXPECTED)
    assert (state.reading, verdict.finding) == ({"at": 30}, "below")
    assert findings(Scripted(0, None, rounds=None), Scripted(1, None, rounds=0)) == ["unknown", "unknown"]


def test_a_restart_ends_a_fall() -> None:
    found = findings(Scripted(0, 1.7), Scripted(90, 1.7, restarted=True), Scripted(110, 1.7), Scripted(190, 1.7))
    assert found == ["below", "below", "below", "retrain"]


def config(root: Path, *settings: str) -> Config:
    return load_config(write(root), parse_overrides(("watch.seconds=100", "watch.least_rounds=50", *settings))).config


def promote(store: ArtifactStore, drafter: str, tau: float) -> None:
    with DrafterRegistry(store).writing() as writer:
        writer.add(Event(event="promoted", service="default", drafter=drafter, figures={"tau": tau}, time=now()))


def test_the_state_is_kept_between_polls_and_belongs_to_the_promoted_drafter(tmp_path: Path) -> None:
    store, seen = ArtifactStore(tmp_path / "store"), []

    def reads(reading: Scripted) -> Any:
        def read(earlier: Mapping[str, Any] | None) -> Scripted:
            seen.append(earlier)
            return reading

        return read

    with pytest.raises(NothingToCompare, match=r"set watch\.tau, or run the flow retrain first"):
        poll(config(tmp_path), store, reads(Scripted(0, 1.0)))
    promote(store, "a" * 64, 2.0)
    assert poll(config(tmp_path), store, reads(Scripted(0, 1.5))).finding == "below"
    assert poll(config(tmp_path), store, reads(Scripted(100, 1.5))).finding == "retrain"
    assert seen == [None, {"at": 0}]
    promote(store, "b" * 64, 1.4)
    assert poll(config(tmp_path), store, reads(Scripted(200, 1.4))).finding == "as measured"
    assert poll(config(tmp_path, "watch.tau=4"), store, reads(Scripted(300, 1.4))).finding == "below"
    assert seen[2:] == [None, {"at": 200}]
    (tmp_path / "store" / ".watch" / "default.json").write_text('{"torn')
    assert poll(config(tmp_path), store, reads(Scripted(400, 1.4))).finding == "as measured"


def test_a_server_that_does_not_answer_changes_nothing(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    promote(store, "a" * 64, 2.0)
    poll(config(tmp_path), store, lambda earlier: Scripted(0, 1.5))
    state = (tmp_path / "store" / ".watch" / "default.json").read_bytes()

    def gone(earlier: object) -> Scripted:
        raise ServerError("connection refused")

    with pytest.raises(ServerError):
        poll(config(tmp_path), store, gone)
    assert (tmp_path / "store" / ".watch" / "default.json").read_bytes() == state


def test_the_command_retrains_once_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    promote(ArtifactStore(tmp_path / "store"), "a" * 64, 2.0)
    times = iter(range(0, 1000, 100))
    monkeypatch.setattr(watch, "read_server", lambda url, earlier: Scripted(next(times), 1.2))
    ran: list[str] = []

    def run(flow: Any, *_: Any, **__: Any) -> RunResult:
        ran.append(flow.name)
        return RunResult(flow=flow.name, name="run", nodes=(), seconds=1.0)

    monkeypatch.setattr(watch, "run", run)
    started: list[str] = []
    monkeypatch.setattr(watch, "start_deployment", started.append)
    common = ("watch", "--once", "--config", write(tmp_path), "--store", tmp_path / "store")
    settings = ("--set", "watch.url=http://127.0.0.1:1", "--set", "watch.seconds=100", "--set", "watch.cool_down=250")
    first = specflow(*common, *settings, "--json")
    assert (first.exit_code, document(first)["finding"], ran) == (0, "below", [])
    second = specflow(*common, *settings)
    assert second.stdout.startswith("retrain: tau 1.200, promoted with 2.000: fallen for 100 s")
    assert ran == ["retrain"]
    deployed = (*settings, "--set", "watch.deployment=retrain/nightly")
    assert [specflow(*common, *deployed).stdout.partition(":")[0] for _ in range(3)] == [
        "below", "cooling down", "retrain",
    ]  # fmt: skip
    assert (ran, started) == (["retrain"], ["retrain/nightly"])


def test_the_command_needs_a_server_and_a_tau(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = ("watch", "--once", "--config", write(tmp_path), "--store", tmp_path / "store")
    missing = specflow(*common)
    assert (missing.exit_code, "no server to watch" in missing.stderr) == (2, True)
    monkeypatch.setattr(watch, "read_server", lambda url, earlier: Scripted(0, 1.2))
    nothing = specflow(*common, "--set", "watch.url=http://127.0.0.1:1")
    assert (nothing.exit_code, "set watch.tau" in nothing.stderr) == (2, True)
    wrong = specflow(*common, "--set", "watch.recovery=0.2")
    assert (wrong.exit_code, "expected  a recovery below the margin" in wrong.stderr) == (2, True)
