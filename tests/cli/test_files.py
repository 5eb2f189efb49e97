"""``init``, ``schema`` and where flows and configurations are found."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import jsonschema
import pytest
import yaml

from specflow.config import resources
from specflow.config.loading import load_config
from specflow.config.starter import spread_layers
from tests.cli.support import document, specflow
from tests.config.support import write

ROOT = Path(__file__).resolve().parents[2]


def start(directory: Path, *arguments: str) -> Path:
    """``init`` in an empty directory with the prompts it asks for."""
    write(directory)
    (directory / "prompts").mkdir()
    shutil.move(directory / "train.jsonl", directory / "prompts" / "train.jsonl")
    shutil.move(directory / "held.jsonl", directory / "prompts" / "heldout.jsonl")
    path = directory / "started.yaml"
    result = specflow("init", "--output", path, *arguments)
    assert result.exit_code == 0, result.output
    return path


def test_init_writes_a_configuration_that_loads(tmp_path: Path) -> None:
    path = start(tmp_path, "--target", "random:3")
    config = load_config(path).config
    assert config.target.source == "random:3"
    assert config.capture.layer_ids == (0, 1, 2)
    assert config.drafters["dflash"].train.steps == 1000


def test_without_its_marks_the_starter_says_the_same(tmp_path: Path) -> None:
    path = start(tmp_path, "--target", "random:3")
    text = path.read_text()
    opened = re.sub(r"^( *)#(?! )", r"\1", text, flags=re.MULTILINE)
    opened = re.sub(r"^( *)#(  +[a-z#])", r"\1\2", opened, flags=re.MULTILINE)
    (tmp_path / "opened.yaml").write_text(opened)
    assert load_config(tmp_path / "opened.yaml").config == load_config(path).config
    assert set(yaml.safe_load(opened)) > {"store", "bench", "verify"}
    assert "bench" not in yaml.safe_load(text)


def test_init_reads_the_depth_of_a_local_target(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"num_hidden_layers": 30}))
    path = start(tmp_path, "--target", str(tmp_path / "model"))
    assert load_config(path).config.capture.layer_ids == (4, 14, 24)


def test_init_says_when_the_depth_is_unknown(tmp_path: Path) -> None:
    path = start(tmp_path, "--target", "somebody/model")
    assert "depth is not known" in path.read_text()
    given = start_again(tmp_path, "--target", "somebody/model", "--layers", "12")
    assert "depth is not known" not in given.read_text()
    assert load_config(given).config.capture.layer_ids == (1, 5, 9)


def start_again(directory: Path, *arguments: str) -> Path:
    path = directory / "started.yaml"
    assert specflow("init", "--output", path, "--force", *arguments).exit_code == 0
    return path


def test_init_keeps_an_existing_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("mine")
    result = specflow("init", "--target", "random:0", "--output", path)
    assert result.exit_code == 2
    assert path.read_text() == "mine"


@pytest.mark.parametrize("layers", range(2, 130))
def test_spread_layers_are_increasing_and_never_the_last(layers: int) -> None:
    ids = spread_layers(layers)
    assert ids == sorted(set(ids))
    assert ids[0] >= 0
    assert ids[-1] < layers - 1
    assert len(ids) == min(3, layers - 1)


def test_schema_accepts_the_shipped_configurations_and_refuses_a_typo() -> None:
    schema = document(specflow("schema"))
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        data = yaml.safe_load(path.read_text())
        jsonschema.validate(data, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**data, "captur": 1}, schema)
    described = schema["$defs"]["RegenerateParams"]["properties"]["max_new_tokens"]
    assert described["description"] == "Longest answer in tokens."
    assert "in_key" not in json.dumps(schema)


def test_schema_of_a_section_and_of_a_flow() -> None:
    assert document(specflow("schema", "bench"))["properties"]["repeats"]["default"] == 1
    assert "stages" in document(specflow("schema", "flow"))["properties"]
    unknown = specflow("schema", "bnech")
    assert unknown.exit_code == 2
    assert "did you mean `bench`?" in unknown.stderr


def test_check_reports_every_file(tmp_path: Path) -> None:
    good = write(tmp_path)
    flow = tmp_path / "flow.yaml"
    flow.write_text("name: f\nstages:\n  a: {stage: traget}\n")
    bad = tmp_path / "bad.yaml"
    bad.write_text(good.read_text().replace("small", "[1]"))
    assert document(specflow("schema", "--check", "--json", good))["valid"] == [str(good)]
    result = specflow("schema", "--check", good, flow, bad, tmp_path / "gone.yaml")
    assert result.exit_code == 2
    assert "did you mean `target`?" in result.stderr
    assert f"{bad}:1:7: name: wrong type" in result.stderr
    assert "gone.yaml: no such" in result.stderr


def test_everything_shipped_is_valid() -> None:
    result = specflow("schema", "--check")
    assert result.exit_code == 0, result.stderr
    assert "full-pipeline.yaml" in result.stdout


def test_names_are_found_in_the_current_directory_then_here_then_in_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resources.find("configs", "smoke") == ROOT / "configs" / "smoke.yaml"
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "smoke.yaml").write_text("name: mine\n")
    assert resources.find("configs", "smoke").read_text() == "name: mine\n"
    installed = tmp_path / "site-packages" / "specflow"
    (installed / "_data" / "flows").mkdir(parents=True)
    (installed / "_data" / "flows" / "full-pipeline.yaml").write_text("name: installed\n")
    (tmp_path / "site-packages" / "flows").mkdir()
    monkeypatch.setattr(resources, "__file__", str(installed / "config" / "resources.py"))
    assert resources.find("flows", "full-pipeline").read_text() == "name: installed\n"
    assert resources.find("flows", "flows/full-pipeline.yaml").read_text() == "name: installed\n"
