"""``plan``, ``run`` and the stage commands: what they hand on, and how they end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from specflow.cli import execute
from specflow.config.root import Config
from specflow.stages.contract import StageError
from tests.cli.support import document, run_result, specflow
from tests.config.support import VALID, write


class Runner:
    """Stands in for the runner; keeps what it was asked for."""

    def __init__(self) -> None:
        self.result: Any = run_result()
        self.config: Config
        self.asked: dict[str, Any] = {}

    def __call__(self, flow: Any, config: Config, store: Any, **asked: Any) -> Any:
        self.config, self.asked = config, {"flow": flow.name, "store": store.root, **asked}
        if isinstance(self.result, BaseException):
            raise self.result
        asked["console"].message("working")
        return self.result


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    fake = Runner()
    monkeypatch.setattr(execute, "run", fake)
    return fake


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write(tmp_path, VALID + f"store: {tmp_path / 'store'}\n")


def test_plan_as_json(config: Path) -> None:
    result = specflow("plan", "full-pipeline", "--config", config, "--json")
    assert result.exit_code == 0, result.output
    nodes = {node["id"]: node for node in document(result)["nodes"]}
    assert [n for n in nodes if n.startswith("train")] == ["train:first", "train:second"]
    assert {node["state"] for node in nodes.values()} == {"to run"}
    assert nodes["capture"]["needs"] == ["target", "tokenize"]
    assert len({node["key"] for node in nodes.values()}) == len(nodes) == 13
    assert nodes["target"]["reason"] == "never made"


def test_training_on_sampled_answers_is_refused_before_anything_runs_and_sampling_alone_is_not(config: Path) -> None:
    sampled = ("--config", config, "--set", "regenerate.temperature=0.5", "--json")
    result = specflow("plan", "full-pipeline", *sampled)
    assert result.exit_code == 2
    (problem,) = document(result)["problems"]
    assert problem["path"] == "regenerate.temperature"
    assert (problem["found"], problem["expected"]) == ("0.5", "0")
    assert "greedy" in problem["hint"]
    assert specflow("plan", "full-pipeline", *sampled, "--only", "regenerate", "--upstream").exit_code == 0
    assert specflow("plan", "vocabulary", *sampled).exit_code == 0


def test_plan_as_a_tree(config: Path) -> None:
    result = specflow("plan", "full-pipeline", "--config", config)
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    lines = [line.strip(" │├└─") for line in result.stdout.splitlines()]
    assert lines[0] == "full-pipeline"
    assert lines[1].startswith("target  to run  never made")
    assert lines[-1].startswith("13 to run")


def test_plan_with_a_missing_input_says_what_makes_it(config: Path) -> None:
    result = specflow("plan", "full-pipeline", "--config", config, "--only", "capture", "--json")
    assert result.exit_code == 2
    [node] = document(result)["nodes"]
    assert (node["id"], node["state"]) == ("capture", "blocked")
    assert "run `specflow target` first, or add --upstream" in result.stderr
    upstream = specflow("plan", "full-pipeline", "-c", config, "--only", "capture", "--upstream", "--json")
    assert upstream.exit_code == 0
    assert [n["id"] for n in document(upstream)["nodes"]] == ["target", "regenerate", "tokenize", "capture"]


def test_a_stage_command_without_its_inputs_runs_nothing(config: Path) -> None:
    result = specflow("tokenize", "--config", config)
    assert result.exit_code == 2
    assert "specflow target" in result.stderr
    assert "specflow regenerate" in result.stderr


def test_errors_of_flow_configuration_and_settings_come_together(config: Path) -> None:
    config.write_text(config.read_text().replace("name: small", "nam: small"))
    result = specflow("run", "full-pipelin", "--config", config, "--set", "bench.repeats")
    assert result.exit_code == 2
    assert "did you mean `full-pipeline`?" in result.stderr
    assert "--set bench.repeats: not an assignment" in result.stderr
    assert f"{config}:1:1: nam: unknown key" in result.stderr
    assert "4 errors; nothing was run" in result.stderr


def test_errors_as_json(config: Path) -> None:
    result = specflow("run", "full-pipeline", "--config", config, "--set", "bench.repeats=0", "--json")
    assert result.exit_code == 2
    assert document(result)["errors"] == [
        {
            "file": "--set bench.repeats=0",
            "line": None,
            "column": None,
            "path": "bench.repeats",
            "message": "wrong value",
            "found": "0",
            "expected": "greater than or equal to 1",
            "hint": "",
        }
    ]


def test_an_error_of_a_stages_check_has_its_line(config: Path) -> None:
    config.write_text(config.read_text() + "bench:\n  repeats: 1\n  max_new_tokens: 1\n")
    result = specflow("plan", "full-pipeline", "--config", config)
    assert result.exit_code == 2
    assert f"{config}:23:19: bench.max_new_tokens" in result.stderr


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (run_result("made"), 0),
        (run_result("cached"), 0),
        (run_result("failed"), 1),
        (run_result("not run"), 1),
        (run_result("interrupted", interrupted=True), 130),
        (StageError("the disk is full"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_exit_codes(runner: Runner, config: Path, result: Any, code: int, as_json: bool) -> None:
    runner.result = result
    done = specflow("run", "full-pipeline", "--config", config, *(["--json"] if as_json else []))
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    if isinstance(result, StageError):
        assert "the disk is full" in done.stderr


def test_run_as_json_leaves_progress_to_standard_error(runner: Runner, config: Path) -> None:
    done = specflow("run", "full-pipeline", "--config", config, "--json")
    assert document(done)["exit_code"] == 0
    assert document(done)["nodes"][0]["metrics"] == {"tau": 2.5}
    assert "working" in done.stderr
    assert "working" in specflow("run", "full-pipeline", "--config", config).stdout


def test_run_ends_with_one_line(runner: Runner, config: Path) -> None:
    done = specflow("run", "full-pipeline", "--config", config)
    assert done.stdout.splitlines()[-1] == "full-pipeline: 1 made in 1 min 5 s"


def test_what_run_hands_on(runner: Runner, config: Path, tmp_path: Path) -> None:
    store = tmp_path / "other"
    done = specflow(
        "run",
        "full-pipeline",
        "-c",
        config,
        "--set",
        "bench.repeats=3",
        "--store",
        store,
        "--only",
        "train",
        "--upstream",
    )
    assert done.exit_code == 0, done.output
    assert runner.config.bench.repeats == 3
    assert (runner.asked["store"], runner.asked["only"], runner.asked["upstream"]) == (store, ["train"], True)
    location = runner.asked["locate"]("capture.layer_ids")
    assert (location.source, location.line, location.column) == (str(config), 11, 14)


@pytest.mark.parametrize(
    ("arguments", "path", "value"),
    [
        ("regenerate --max-new-tokens 64", "regenerate.max_new_tokens", 64),
        ("regenerate --max-skipped 0.5", "regenerate.max_skipped", 0.5),
        ("regenerate --precision packed", "regenerate.precision", "packed"),
        ("regenerate --threads none --threads 2", "regenerate.threads", 2),
        ("capture --layer-ids 0,1,2", "capture.layer_ids", (0, 1, 2)),
        ("capture --layer-ids [0,2]", "capture.layer_ids", (0, 2)),
        ("train --steps 7", "drafters.first.train.steps", 7),
        ("train --steps 7", "drafters.second.train.steps", 7),
        ("train --steps 7 --drafter second", "drafters.first.train.steps", 5),
        ("train --steps 7 --drafter second", "drafters.second.train.steps", 7),
        ("train --betas 0.8,0.9", "drafters.first.train.betas", (0.8, 0.9)),
        ("train --mask-token <|x|>", "drafters.first.mask_token", "<|x|>"),
        ("train --mask-token none", "drafters.first.mask_token", None),
        ("train --learning-rate 1e-3", "drafters.first.train.learning_rate", 1e-3),
        ("bench --no-compare-transformers", "bench.compare_transformers", False),
        ("bench --compare-transformers", "bench.compare_transformers", True),
        ("report --title 5:x", "report.title", "5:x"),
        ("target --source 12", "target.source", "12"),
    ],
)
def test_stage_flags_reach_the_configuration(
    runner: Runner, config: Path, arguments: str, path: str, value: object
) -> None:
    stage, *flags = arguments.split()
    done = specflow(stage, "--config", config, *flags)
    assert done.exit_code == 0, done.output
    found: Any = runner.config
    for part in path.split("."):
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    assert found == value
    assert runner.asked["only"] == ([f"{stage}:second"] if "--drafter" in flags else [stage])


def test_a_wrong_flag_is_named_as_it_was_typed(config: Path) -> None:
    done = specflow("train", "--config", config, "--steps", "many", "--warmup", "2", "--betas", "[0.1")
    assert done.exit_code == 2
    assert "--steps many: drafters.first.train.steps: wrong type" in done.stderr
    assert "--warmup 2: drafters.first.train.warmup: wrong value" in done.stderr
    assert "--betas [0.1: " in done.stderr


def test_an_unknown_drafter_is_an_error(config: Path) -> None:
    for flags in ([], ["--steps", "7"]):
        done = specflow("train", "--config", config, "--drafter", "secnd", *flags)
        assert done.exit_code == 2
        assert "did you mean `second`?" in done.stderr
        assert "1 error;" in done.stderr


def test_an_unknown_option_is_bad_input() -> None:
    assert specflow("train", "--config", "smoke", "--stepz", "1").exit_code == 2
    assert specflow("train").exit_code == 2


def test_dump_config_is_yaml_that_loads_back_equal(config: Path, tmp_path: Path) -> None:
    first = specflow("run", "full-pipeline", "-c", config, "--set", "bench.repeats=3", "--dump-config")
    assert first.exit_code == 0
    assert yaml.safe_load(first.stdout)["bench"]["repeats"] == 3
    (tmp_path / "dumped.yaml").write_text(first.stdout)
    second = specflow("run", "full-pipeline", "-c", tmp_path / "dumped.yaml", "--dump-config")
    assert second.stdout == first.stdout
