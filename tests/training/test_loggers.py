"""Loggers: TensorBoard for real, the others against modules that stand in for them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specflow.training import loggers
from specflow.training.loggers import Loggers, flat, not_installed, open_loggers


def opened(names: list[str], directory: Path, *, first_step: int = 0) -> tuple[Loggers, list[str]]:
    notes: list[str] = []
    made = open_loggers(
        names, directory=directory, run="small", settings={"steps": 7}, first_step=first_step, note=notes.append
    )
    return made, notes


def test_nested_values_become_named_numbers() -> None:
    values = {
        "tau": 1.5,
        "by_kind": {"a": {"tau": 2}},
        "per": [0.5, None, 0.25],
        "name": "x",
        "none": None,
        "yes": True,
    }
    assert flat({"heldout": values}) == {
        "heldout/tau": 1.5, "heldout/by_kind/a/tau": 2.0, "heldout/per/1": 0.5, "heldout/per/3": 0.25,
    }  # fmt: skip


def test_tensorboard_files_hold_the_values_and_resume_hides_what_is_superseded(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first, notes = opened(["tensorboard"], tmp_path)
    for step in (1, 2, 3):
        first.log(step, {"train": {"loss": 4.0 - step}})
    first.close()
    second, _ = opened(["tensorboard"], tmp_path, first_step=3)  # killed after a checkpoint at 2
    second.log(3, {"train": {"loss": 8.0}})
    second.log(4, {"train": {"loss": 0.5}, "heldout": {"tau": 2.25}})
    second.close()
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(e.step, e.value) for e in found.Scalars("train/loss")] == [(1, 3.0), (2, 2.0), (3, 8.0), (4, 0.5)]
    assert [(e.step, e.value) for e in found.Scalars("heldout/tau")] == [(4, 2.25)]
    assert notes == []


class FakeMlflow(ModuleType):
    """Records what a tracking client is told."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.calls: list[Any] = []
        calls = self.calls

        class MlflowClient:
            def __init__(self, tracking_uri: str) -> None:
                calls.append(("uri", tracking_uri))

            def get_experiment_by_name(self, name: str) -> None:
                return None

            def create_experiment(self, name: str) -> str:
                return "7"

            def create_run(self, experiment: str, run_name: str) -> Any:
                calls.append(("run", experiment, run_name))
                return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

            def log_param(self, run: str, name: str, value: Any) -> None:
                calls.append(("param", run, name, value))

            def log_metric(self, run: str, name: str, value: float, step: int) -> None:
                calls.append(("metric", run, name, value, step))

            def set_terminated(self, run: str) -> None:
                calls.append(("end", run))

        self.MlflowClient = MlflowClient


def test_mlflow_continues_its_run_without_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    for first_step in (0, 2):
        made, notes = opened(["mlflow"], tmp_path, first_step=first_step)
        made.log(first_step + 1, {"train": {"loss": 2.0}})
        made.close()
        assert notes == []
    uri = ("uri", f"sqlite:///{tmp_path}/mlflow/mlflow.db")
    assert fake.calls == [
        uri, ("run", "7", "small"), ("param", "r1", "steps", 7), ("metric", "r1", "train/loss", 2.0, 1), ("end", "r1"),
        uri, ("metric", "r1", "train/loss", 2.0, 3), ("end", "r1"),
    ]  # fmt: skip


def test_wandb_is_offline_and_a_failing_logger_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: dict[str, Any] = {}
    logged: list[Any] = []

    def log(values: dict[str, float], step: int) -> None:
        if step == 2:
            raise OSError("disk full")
        logged.append((step, values))

    def init(**options: Any) -> Any:
        started.update(options)
        return SimpleNamespace(log=log, finish=lambda: logged.append("finish"))

    fake = ModuleType("wandb")
    fake.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    made, notes = opened(["wandb"], tmp_path)
    for step in (1, 2, 3):
        made.log(step, {"train": {"loss": 1.5}})
    made.close()
    assert (started["mode"], started["name"], started["config"]) == ("offline", "small", {"steps": 7})
    assert started["dir"] == str(tmp_path / "wandb")
    assert logged == [(1, {"train/loss": 1.5})]
    assert notes == ["logger wandb is switched off: OSError: disk full"]


def test_a_logger_that_cannot_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    made, notes = opened(["wandb"], tmp_path)
    made.log(1, {"loss": 1.0})
    assert len(notes) == 1
    assert notes[0].startswith("logger wandb is switched off: ")


def test_packages_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"tensorboard"}
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: name if name in there else None)
    assert not_installed(["tensorboard", "mlflow", "wandb"]) == ["mlflow", "wandb"]
