"""Options of the train stage that are the same for every method: warm start, loggers, groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specflow.stages import train as stage
from specflow.stages import train_options
from specflow.stages.contract import StageError
from specflow.workflow.keys import key_parameters
from tests.stages.test_train import PARAMS, features, run, target  # noqa: F401 (fixtures)

SHORT = {"steps": 4, "evaluate_every": 2, "log_every": 1, "init_from": None}


def options(**changes: Any) -> Any:
    return PARAMS.model_copy(update={"train": PARAMS.train.model_copy(update={**SHORT, **changes})})


def test_warm_start_is_in_log_manifest_and_first_evaluation(tmp_path: Path, target: Path, features: Path) -> None:  # noqa: F811
    _, first = run(tmp_path / "first", target, features)
    (first.output / "artifact.json").write_text("{}")
    start = first.output.rename(tmp_path / ("ab" * 32))
    _, second = run(tmp_path / "second", target, features, options(init_from=str(start), learning_rate=1e-9))
    assert any(m.startswith(f"starts from {'ab' * 32}: 14 tensors") for m in second.messages)
    lineage = json.loads((second.output / "drafter" / "manifest.json").read_text())["lineage"]["init_from"]
    assert (lineage["source"], lineage["taken"], lineage["new"], lineage["left"]) == ("ab" * 32, 14, {}, {})
    rows = [json.loads(line) for line in (second.output / "metrics.jsonl").read_text().splitlines()]
    best = json.loads((start / "drafter" / "manifest.json").read_text())["lineage"]["step"]
    before = [json.loads(line) for line in (start / "metrics.jsonl").read_text().splitlines()]
    (reached,) = (row["tau"] for row in before if row["step"] == best and "tau" in row)
    assert rows[0]["tau"] == reached  # it begins where the other one ended


def test_a_warm_start_that_does_not_fit_is_refused(tmp_path: Path, target: Path, features: Path) -> None:  # noqa: F811
    _, first = run(tmp_path / "first", target, features, options())
    narrow = options(init_from=str(first.output)).model_copy(update={"layer_ids": (2,)})
    with pytest.raises(StageError, match=r"fc.weight: \(64, 128\) there, \(64, 64\) here"):
        run(tmp_path / "second", target, features, narrow)


def test_key_follows_the_content_of_the_drafter_and_not_its_place(tmp_path: Path) -> None:
    def key(place: str, content: str) -> Any:
        directory = tmp_path / place
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text("{}")
        (directory / "model.safetensors").write_text(content)
        params = options(init_from=str(directory))
        assert list(stage.check(params)) == []
        return key_parameters(params, stage.files(params))

    assert key("a", "same") == key("b", "same")
    assert key("a", "same") != key("c", "other")
    assert key_parameters(options(), stage.files(options())) != key("a", "same")


def test_a_directory_without_a_drafter_and_loggers_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specflow.training import loggers

    monkeypatch.setattr(loggers, "not_installed", lambda names: ["wandb"] if "wandb" in names else [])
    found = list(train_options.check_options(options(init_from=str(tmp_path), loggers=("wandb",)).train))
    assert [(p.where, p.found) for p in found] == [
        ("train.loggers", "wandb, which is not installed"),
        ("train.init_from", f"no *.safetensors and no config.json in {tmp_path}"),
    ]
    assert found[0].hint == "pip install wandb"


def test_event_files_are_in_the_artifact(tmp_path: Path, target: Path, features: Path) -> None:  # noqa: F811
    pytest.importorskip("tensorboard")
    _, context = run(tmp_path, target, features, options(loggers=("tensorboard",)))
    assert list((context.output / "logs" / "tensorboard").glob("events.out.tfevents.*"))
    elsewhere = options(loggers=("tensorboard",), log_dir=tmp_path / "runs")
    _, context = run(tmp_path / "again", target, features, elsewhere)
    assert list((tmp_path / "runs" / "tiny" / "tensorboard").glob("events.out.tfevents.*"))
    assert not (context.output / "logs").exists()


def test_groups_of_nothing_are_refused(tmp_path: Path, target: Path, features: Path) -> None:  # noqa: F811
    from specflow.config.parameter_groups import GroupParams

    with pytest.raises(StageError, match=r"train.groups: groups.0.match: 'nothing' matches no parameter"):
        run(tmp_path, target, features, options(groups=(GroupParams(match="nothing"),)))


def test_a_finished_run_goes_on_with_more_steps(tmp_path: Path, target: Path, features: Path) -> None:  # noqa: F811
    plateau = {"schedule": "constant", "warmup_steps": 1, "checkpoint_every": 3}
    _, whole = run(tmp_path / "whole", target, features, options(steps=8, **plateau))
    _, first = run(tmp_path / "first", target, features, options(steps=4, keep_state=True, **plateau))
    longer = options(steps=8, init_from=str(first.output), init_take="state", **plateau)
    assert list(stage.check(longer)) == []
    assert {f.name for f in stage.files(longer)} >= {"step-00000004.safetensors", "metrics.jsonl"}
    _, second = run(tmp_path / "second", target, features, longer)
    assert "training continues after step 4" in second.messages
    files = [context.output / "drafter" / "model.safetensors" for context in (whole, second)]
    assert files[0].read_bytes() == files[1].read_bytes()
    kept = [_without_times(context.output / "metrics.jsonl") for context in (whole, second)]
    assert kept[0] == kept[1]
    for context in (whole, second):
        assert not (context.output / "state").exists()
    (problem,) = stage.check(options(init_from=str(whole.output), init_take="state"))
    assert problem.found == f"no training state in {whole.output}"
    (problem,) = stage.check(options(init_take="state"))
    assert problem.where == "train.init_take"


def _without_times(curve: Path) -> list[dict[str, Any]]:
    timed = ("seconds", "anchors_per_second", "context_tokens_per_second")
    rows = [json.loads(line) for line in curve.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in timed} for row in rows]
