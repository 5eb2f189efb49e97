"""Every kind of damage to a features artifact: named, repaired to the recorded bytes, or refused with a reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.config.capture import CaptureParams
from specflow.features.making import ShardMaker
from specflow.stages import capture
from specflow.stages.contract import Artifact, Inputs
from specflow.targets.target import Target
from specflow.workflow.commit import Attempt, Recipe
from specflow.workflow.registry import STAGES
from specflow.workflow.repair import repair_features
from specflow.workflow.store import ArtifactStore
from tests.cli.support import document, specflow
from tests.stages.capture_helpers import greedy_documents, tokens_artifact
from tests.stages.capture_process import PARAMS
from tests.stages.pipeline_helpers import FakeContext, tiny_target, tree

CHUNK = "store/shard-00001/features/c/0/0/0"
KEYS = {"target": "1" * 64, "tokens": "2" * 64, "features": "3" * 64}


def commit(
    store: ArtifactStore,
    kind: str,
    fill: Callable[[Attempt], Any],
    inputs: tuple[str, ...] = (),
    params: CaptureParams = PARAMS,
) -> Artifact:
    """An artifact of ``kind`` made from those named in ``inputs``; ``fill`` writes its output, returns its metrics."""
    recipe = Recipe(
        kind=kind,
        key=KEYS[kind],
        stage="capture" if kind == "features" else kind,
        item=None,
        code_version=STAGES.code_version("capture"),
        parameters=params.model_dump(mode="json"),
        key_parameters={},
        inputs={name: [KEYS[name]] for name in inputs},
    )
    attempt = Attempt(store, recipe)
    records = (store.record(name, KEYS[name]) for name in inputs)
    attempt.prepare({f"{r.kind}/{r.key}": r.content_digest for r in records if r})
    return attempt.commit(fill(attempt) or {})


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a target, documents, and their features in several shards."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("pristine")
    store, made = ArtifactStore(root / "store"), root / "made"
    target = Target.load(tiny_target(made).path, precision="fp32", threads=1)
    tokens_artifact(made / "tokens", greedy_documents(target))
    sources = tuple(
        commit(store, kind, lambda a, k=kind: shutil.copytree(made / k, a.output, dirs_exist_ok=True) and None)
        for kind in ("target", "tokens")
    )

    def captured(attempt: Attempt) -> Any:
        context = FakeContext(root / "run")
        context.output, context.scratch = attempt.output, attempt.scratch
        return capture.run(Inputs(sources), PARAMS, context)

    features = commit(store, "features", captured, inputs=("target", "tokens"))
    assert features.metrics["shards"] > 2
    return store.root


@pytest.fixture
def store(pristine: Path, tmp_path: Path) -> ArtifactStore:
    shutil.copytree(pristine, tmp_path / "store")
    return ArtifactStore(tmp_path / "store")


def features(store: ArtifactStore) -> Path:
    return store.path("features", KEYS["features"])


def flip(place: Path) -> None:
    path = place / CHUNK
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, tuple[Callable[[Path], object], str, str, list[str]]] = {
    "flipped byte": (flip, CHUNK, "sha256 differs", ["shard-00001"]),
    "truncated chunk": (
        lambda place: (place / CHUNK).write_bytes((place / CHUNK).read_bytes()[:-5]), CHUNK, "bytes, ", ["shard-00001"],
    ),
    "missing chunk": (lambda place: (place / CHUNK).unlink(), CHUNK, "is missing", ["shard-00001"]),
    "foreign file": (
        lambda place: (place / "store/shard-00001/extra").write_text("x"),
        "store/shard-00001/extra", "does not belong", [],
    ),
    "missing marker": (
        lambda place: (place / "store/shard-00001/COMMIT.json").unlink(),
        "store/shard-00001/COMMIT.json", "is missing", ["shard-00001"],
    ),
    "missing shard": (
        lambda place: shutil.rmtree(place / "store/shard-00000"), "store/shard-00000/zarr.json", "is missing",
        ["shard-00000"],
    ),
    "lost contract": (lambda place: (place / "contract.json").write_text("{}"), "contract.json", "bytes, ", []),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_and_repaired_and_whole_shards_are_left_alone(
    pristine: Path, store: ArtifactStore, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil, name, problem, shards = DAMAGE[kind]
    place = features(store)
    spoil(place)
    untouched = {p: p.stat().st_ino for p in place.glob("store/*/features/c/0/0/0") if p.parents[4].name not in shards}
    wrong = store.damage("features", KEYS["features"], store.record("features", KEYS["features"]))  # type: ignore[arg-type]
    computed: list[int] = []
    honest = ShardMaker._compute
    monkeypatch.setattr(ShardMaker, "_compute", lambda self, task: computed.append(task.number) or honest(self, task))
    result = specflow("features", "repair", KEYS["features"][:9], "--store", store.root, "--json")
    assert result.exit_code == 0, result.output
    found = document(result)
    assert found["damage"] == wrong
    assert problem in found["damage"][name]
    assert found["shards"] == shards
    assert f"damaged: {name} " in result.stderr
    assert tree(place) == tree(pristine / "features" / KEYS["features"])
    assert {p: p.stat().st_ino for p in untouched} == untouched
    assert computed == [int(shard.removeprefix("shard-")) for shard in shards]
    assert not list(store.work.glob("*/repair"))
    again = specflow("features", "repair", f"features/{KEYS['features'][:9]}", "--store", store.root)
    assert (again.exit_code, again.stdout) == (0, f"features/{KEYS['features'][:12]}: every byte is as recorded\n")


def test_a_foreign_file_is_kept_outside_the_artifact(store: ArtifactStore) -> None:
    (features(store) / "store/shard-00001/extra").write_text("somebody's")
    done = repair_features(store, KEYS["features"], log=lambda _: None)
    assert dict(done.damage) == {"store/shard-00001/extra": "does not belong"}
    (kept,) = store.damaged.rglob("extra")
    assert kept.read_text() == "somebody's"


def refused(store: ArtifactStore, *, reason: str) -> None:
    """Repair ends with code 1 and this reason, and changes nothing."""
    before = tree(features(store))
    result = specflow("features", "repair", KEYS["features"], "--store", store.root, "--json")
    assert result.exit_code == 1, result.output
    found = document(result)
    assert found["repaired"] is False
    assert reason in found["error"]
    assert "run the flow" in found["error"]
    assert tree(features(store)) == before


def test_other_bytes_than_the_recorded_are_refused_with_what_differs(store: ArtifactStore) -> None:
    """As on a machine of other arithmetic: the record says another one was used."""
    flip(features(store))
    record = features(store) / "artifact.json"
    values = json.loads(record.read_text())
    values["metrics"]["precision"] = "bf16"
    values["environment"]["packages"]["torch"] = "0.1"
    record.write_text(json.dumps(values))
    refused(store, reason=f"first {CHUNK}: nothing was changed. Captured with precision bf16, threads 1, device cpu.")
    refused(store, reason=f"torch 0.1 then, {torch.__version__.split('+')[0]}")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda store: shutil.rmtree(store.path("tokens", KEYS["tokens"])), "input tokens/222222222222 is not in"),
        (
            lambda store: (store.path("tokens", KEYS["tokens"]) / "tokens.jsonl").write_text(""),
            "input tokens/222222222222 is damaged itself (tokens.jsonl has 0 bytes",
        ),
        (lambda store: (features(store) / "artifact.json").unlink(), "artifact.json is missing or unreadable"),
    ],
)
def test_what_cannot_be_repaired_is_refused(
    store: ArtifactStore, spoil: Callable[[ArtifactStore], object], reason: str
) -> None:
    flip(features(store))
    spoil(store)
    refused(store, reason=reason)


def test_inputs_of_other_content_are_refused(store: ArtifactStore) -> None:
    flip(features(store))
    record = store.path("tokens", KEYS["tokens"]) / "artifact.json"
    values = json.loads(record.read_text())
    (store.path("tokens", KEYS["tokens"]) / "more").touch()
    values["files"]["more"] = {"size": 0, "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
    record.write_text(json.dumps(values))
    refused(store, reason="input tokens/222222222222 was made again with other content")


def test_an_artifact_that_is_being_made_is_left_alone(store: ArtifactStore) -> None:
    with store.lock("features", KEYS["features"]):
        result = specflow("features", "repair", KEYS["features"], "--store", store.root)
    assert result.exit_code == 1
    assert "another process makes or repairs this artifact" in result.stderr


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("9", "no artifact starts with 'features/9'"),
        ("tokens/2", "is an artifact of kind tokens"),
        ("no.yaml", "no such"),
    ],
)
def test_wrong_names_are_bad_input(store: ArtifactStore, what: str, said: str) -> None:
    result = specflow("features", "repair", what, "--store", store.root)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_configuration_without_features_is_bad_input(store: ArtifactStore) -> None:
    result = specflow("features", "repair", "configs/smoke.yaml", "--store", store.root)
    assert result.exit_code == 2
    assert "no features of this configuration" in result.stderr
