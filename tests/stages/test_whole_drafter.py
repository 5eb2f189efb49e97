"""``train.init_take: whole``: an imported drafter in place of a trained one, byte for byte; unfit ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specflow.config.methods import method_params
from specflow.stages import train
from specflow.stages.contract import StageError
from specflow.stages.train_options import check_options, warm_start_files
from tests.serving.helpers import Pipeline, drafter_of, make_pipeline
from tests.serving.trained import SECTIONS
from tests.stages.pipeline_helpers import FakeContext, inputs, tiny_target, tree


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return make_pipeline(tmp_path_factory.mktemp("whole"))


def params(place: Path, method: str = "dflash", **more: Any) -> Any:
    section = {"init_from": str(place), "init_take": "whole", **more}
    return method_params()[method].model_validate({"method": method, **SECTIONS[method], "train": section})


def test_it_is_taken_as_it_is(made: Pipeline, tmp_path: Path) -> None:
    context = FakeContext(tmp_path)
    metrics = train.run(inputs(made.target, made.features), params(made.drafter.path), context)
    assert tree(context.output / "drafter") == tree(made.drafter.path / "drafter")
    assert metrics["parameters"] > 0
    found = {path.name for path in warm_start_files(params(made.drafter.path).train)}
    assert found == {"config.json", "manifest.json", "model.safetensors"}
    assert list(check_options(params(made.drafter.path).train)) == []


def test_what_does_not_fit_is_refused(made: Pipeline, tmp_path: Path) -> None:
    given = inputs(made.target, made.features)
    with pytest.raises(StageError, match="of method 'dspark', found 'dflash'"):
        train.run(given, params(made.drafter.path, "dspark"), FakeContext(tmp_path / "a"))
    other = tiny_target(tmp_path / "other", seed=7)
    with pytest.raises(StageError, match="weights_sha256"):
        train.run(given, params(drafter_of(tmp_path / "d", other, "dflash").path), FakeContext(tmp_path / "b"))
    place = drafter_of(tmp_path / "e", made.target, "dflash").path / "drafter"
    for name in ("manifest.json", "config.json"):
        values = json.loads((place / name).read_text())
        (place / name).write_text(json.dumps(values).replace("[0, 2]", "[0, 1]"))
    with pytest.raises(StageError, match="specflow import"):  # the contract no longer has its hash
        train.run(given, params(place), FakeContext(tmp_path / "c"))
    (place / "manifest.json").unlink()
    assert [p.found for p in check_options(params(place).train)] == [f"no manifest.json in {place}"]
    alone = method_params()["dflash"].model_validate({"method": "dflash", "train": {"init_take": "whole"}})
    assert [p.where for p in check_options(alone.train)] == ["train.init_take"]
