"""Damaged features end a stage with an error that names artifact, shard and file, and says what to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specflow.config.drafter import TrainParams
from specflow.config.export import ExportParams
from specflow.config.verify import VerifyParams
from specflow.drafters.dflash.params import Params
from specflow.features.location import Bucket, StorageError, keep_elsewhere
from specflow.features.shard import DamagedShard
from specflow.stages import export, train, verify
from specflow.stages.contract import Artifact, Inputs, StageError
from specflow.stages.running import readable, run_stage
from specflow.training import launch
from specflow.training.guards import TrainingDiverged
from tests.serving.helpers import Pipeline, make_pipeline
from tests.stages.pipeline_helpers import FakeContext, artifact, inputs

KEY = "f" * 64
CHUNK = "store/shard-00000/features/c/0/0/0"
TRAIN = Params(method="dflash", num_layers=1, block_size=4, train=TrainParams(steps=1, threads=1))
VERIFY = VerifyParams(max_new_tokens=4, documents=2, threads=1)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    torch.set_num_threads(1)
    return make_pipeline(tmp_path_factory.mktemp("running"))


@pytest.fixture(scope="module")
def exported(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    context = FakeContext(tmp_path_factory.mktemp("export"))
    export.run(inputs(pipeline.target, pipeline.drafter), ExportParams(dtype="float32"), context)
    return artifact("export", context.output)


@pytest.fixture
def features(pipeline: Pipeline, tmp_path: Path) -> Artifact:
    """A copy to be damaged, where a store has it."""
    place = tmp_path / "store" / "features" / KEY
    shutil.copytree(pipeline.features.path, place)
    return Artifact(kind="features", key=KEY, path=place)


def flip(place: Path) -> None:
    data = bytearray((place / CHUNK).read_bytes())
    data[-1] ^= 1
    (place / CHUNK).write_bytes(data)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped byte": (flip, "shard-00000: file 'features/c/0/0/0' has another checksum than was committed"),
    "missing file": (lambda p: (p / CHUNK).unlink(), "shard-00000: file 'features/c/0/0/0' is missing"),
    "missing shard": (lambda p: shutil.rmtree(p / "store/shard-00000"), "shard-00000: the shard is missing"),
    "half a root": (lambda p: (p / "store/zarr.json").write_text("{"), "store/zarr.json: expected the store's attrib"),
    "missing contract": (lambda p: (p / "contract.json").unlink(), "has no file 'contract.json'"),
    "unreadable file": (lambda p: ((p / CHUNK).unlink(), (p / CHUNK).symlink_to(CHUNK.rpartition("/")[2])), CHUNK),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("stage", [train, verify], ids=["train", "verify"])
def test_damage_is_located_and_says_what_to_do(
    pipeline: Pipeline, exported: Artifact, features: Artifact, tmp_path: Path, stage: Any, kind: str
) -> None:
    spoil, said = DAMAGE[kind]
    spoil(features.path)
    given = inputs(pipeline.target, features)
    if stage is verify:
        given = inputs(pipeline.target, pipeline.drafter, exported, features, pipeline.tokens)
    with pytest.raises(StageError) as raised:
        run_stage(stage, given, TRAIN if stage is train else VERIFY, FakeContext(tmp_path / "run"))
    message = str(raised.value)
    assert message.startswith(f"features/{KEY[:12]} ({features.path}) cannot be read: ")
    assert (said if kind != "unreadable file" else "features/c/0/0/0") in message
    where = f"features/{KEY[:12]} --store {tmp_path / 'store'}"
    assert f"`specflow features repair {where}`, then run this stage once more" in message
    assert f"`specflow features verify {where} --documents 0`" in message


def test_whole_features_pass(pipeline: Pipeline, tmp_path: Path) -> None:
    params = TRAIN.model_copy(update={"train": TRAIN.train.model_copy(update={"documents_per_step": 2})})
    assert run_stage(train, inputs(pipeline.target, pipeline.features), params, FakeContext(tmp_path))["steps"] == 1


def test_storage_that_fails_is_no_damage(features: Artifact) -> None:
    keep_elsewhere(features.path, Bucket("s3://bucket/x", {}))
    unreadable = r"features/ffffffffffff .* cannot be read: s3://bucket/x/a: no route"
    with pytest.raises(StageError, match=unreadable) as e, readable([features]):
        raise StorageError("s3://bucket/x/a: no route")
    assert "repair" not in str(e.value)
    damaged = r"s3://bucket/x/shard-00003: .* Make it again: `specflow features repair"
    with pytest.raises(StageError, match=damaged), readable([features]):
        raise DamagedShard("s3://bucket/x/shard-00003: file 'a' is missing")


def test_of_several_artifacts_the_one_it_is_about_is_named(features: Artifact) -> None:
    other = replace(features, key="0" * 64, path=features.path.with_name("0" * 64))
    with pytest.raises(StageError, match=r"^features/000000000000 "), readable([features, other]):
        raise DamagedShard(f"{other.path}/store/shard-00000: the shard is missing")
    unknown = r"^stored features cannot be read: .*features repair"
    with pytest.raises(StageError, match=unknown), readable([features, other]):
        raise DamagedShard("somewhere: the shard is missing")


def test_errors_of_other_files_pass(features: Artifact) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"), readable([features]):
        Path("/nowhere/at/all").read_bytes()
    failing = SimpleNamespace(run=lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_stage(failing, Inputs((features,)), None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [DamagedShard, StorageError, TrainingDiverged])
def test_what_a_rank_found_damaged_is_raised_as_that(kind: type[Exception]) -> None:
    context = SimpleNamespace(processes=[SimpleNamespace(exitcode=1), SimpleNamespace(exitcode=-15)])
    errors = {1: ["RuntimeError", "lost its partner"], 0: [kind.__name__, "shard-00001: file 'a' is missing"]}
    found = launch._failure(context, errors, RuntimeError("x"))
    assert type(found) is kind
    assert str(found) == "shard-00001: file 'a' is missing"
