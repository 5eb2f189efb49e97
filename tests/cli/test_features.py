"""``features stat`` and ``features verify`` on a captured artifact, sound and damaged in every way."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specflow.config.capture import CaptureParams
from specflow.data.documents import TOKENS_FILE, read_documents, write_documents
from specflow.features.contract import FeatureContract
from specflow.features.store import FeatureReader, FeatureWriter
from specflow.stages import capture
from specflow.targets.target import Target
from specflow.targets.tiny import make_tiny_target
from specflow.workflow.commit import Attempt, Recipe
from specflow.workflow.store import ArtifactStore
from tests.cli.support import document, specflow
from tests.stages.capture_helpers import greedy_documents
from tests.stages.pipeline_helpers import FakeContext, inputs, state_fingerprint


def key_of(kind: str) -> str:
    return hashlib.sha256(kind.encode()).hexdigest()


def commit(store: ArtifactStore, kind: str, write: Callable[[Path], Any], made_from: dict[str, list[str]]) -> Path:
    recipe = Recipe(
        kind=kind,
        key=key_of(kind),
        stage=kind,
        item=None,
        code_version="1",
        parameters={},
        key_parameters={},
        inputs=made_from,
    )
    attempt = Attempt(store, recipe)
    attempt.prepare()
    metrics = write(attempt.output)
    attempt.commit(metrics if isinstance(metrics, dict) else {})
    return store.path(kind, recipe.key)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a target and features of it, in several shards."""
    root = tmp_path_factory.mktemp("made")
    store = ArtifactStore(root / "store")
    path = commit(store, "target", lambda path: [make_tiny_target(path, 0), state_fingerprint(path)], {})
    target = store.find("target", key_of("target"))
    assert target is not None
    loaded = Target.load(path, precision="fp32", threads=1)
    documents = greedy_documents(loaded, shared=5, other=4)
    commit(store, "tokens", lambda path: write_documents(path / TOKENS_FILE, documents), {"target": [key_of("target")]})
    tokens = store.find("tokens", key_of("tokens"))
    assert tokens is not None

    def features(output: Path) -> dict[str, Any]:
        context = FakeContext(root / "work")
        params = CaptureParams(layer_ids=(0, 2), shard_tokens=200, batch_tokens=128, precision="fp32", threads=1)
        metrics = capture.run(inputs(target, tokens), params, context)
        shutil.copytree(context.output, output, dirs_exist_ok=True)
        return dict(metrics)

    commit(store, "features", features, {"target": [key_of("target")], "tokens": [key_of("tokens")]})
    return store.root


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(made, tmp_path / "store", copy_function=os.link)


def folder(store: Path, kind: str = "features") -> Path:
    return store / kind / key_of(kind)


def replaced(path: Path, data: bytes) -> None:
    """Written anew: the old file is linked to the module's."""
    path.unlink()
    path.write_bytes(data)


def test_figures_as_json_and_as_text(made: Path) -> None:
    found = document(specflow("features", "stat", folder(made), "--json"))
    reader = FeatureReader(folder(made))
    assert (found["documents"], found["tokens"]) == (9, sum(reader.length(i) for i in range(9)))
    assert found["contract"] == reader.contract.to_dict()
    assert found["bytes"] == sum(p.stat().st_size for p in (folder(made) / "store").rglob("*") if p.is_file())
    assert found["bytes_per_token"] == pytest.approx(found["bytes"] / found["tokens"])
    assert [v["name"] for v in found["vectors"]] == ["layer 0", "layer 2", "last_hidden"]
    assert {(row["split"], row["kind"]) for row in found["coverage"]} <= {
        (split, kind) for split in ("train", "heldout") for kind in ("broad", "service")
    }
    shown = specflow("features", "stat", key_of("features")[:9], "--store", made)
    assert shown.exit_code == 0
    assert "9 documents" in shown.stdout
    assert "layer 2" in shown.stdout
    assert reader.contract.weights_sha256 in shown.stdout


def test_sound_features_are_verified(made: Path) -> None:
    result = specflow("features", "verify", folder(made), "--json")
    assert result.exit_code == 0, result.output
    found = document(result)
    shards = len(list((folder(made) / "store").glob("shard-*")))
    assert (found["shards"], found["documents"], found["damage"], found["differences"]) == (shards, 9, [], [])
    assert shards >= 3
    assert len(found["probes"]) == 4
    assert all(probe["error"] < 0.01 for probe in found["probes"])
    shown = specflow("features", "verify", key_of("features")[:9], "--store", made, "--documents", "2")
    assert (shown.exit_code, "nothing is damaged" in shown.stdout) == (0, True)
    assert "2 documents computed again" in shown.stdout


def test_every_damaged_shard_is_named_with_exit_code_1(store: Path) -> None:
    chunk = folder(store) / "store/shard-00001/features/c/0/0/0"
    replaced(chunk, bytes([chunk.read_bytes()[0] ^ 1]) + chunk.read_bytes()[1:])
    (folder(store) / "store/shard-00002/token_ids/c/0").unlink()
    result = specflow("features", "verify", folder(store), "--json")
    assert result.exit_code == 1
    found = document(result)
    assert found["damaged_shards"] == [1, 2]
    assert "'features/c/0/0/0' has another checksum" in found["damage"][0]
    assert "'token_ids/c/0' is missing" in found["damage"][1]
    shown = specflow("features", "verify", folder(store))
    assert (shown.exit_code, shown.stdout.count("damaged:")) == (1, 2)


def test_features_that_are_not_their_contracts_fail_the_probes(store: Path) -> None:
    """Committed with good checksums, and yet of other layers."""
    reader = FeatureReader(folder(store))
    documents = [reader.document(i) for i in range(len(reader))]
    contract = FeatureContract.from_dict({**reader.contract.to_dict(), "layer_ids": [1, 2]})
    root = folder(store)
    shutil.rmtree(root / "store")
    (root / "contract.json").unlink()
    writer = FeatureWriter(root, contract)
    writer.write(0, documents)
    writer.finish(1)
    result = specflow("features", "verify", root, "--json")
    assert result.exit_code == 1
    found = document(result)
    assert len(found["damage"]) == 4
    assert all("declared as layer 1 match layer 0 better" in line for line in found["damage"])


def test_documents_that_are_not_those_of_the_tokens_are_named(store: Path) -> None:
    path = folder(store, "tokens") / TOKENS_FILE
    documents = read_documents(path)
    documents[2].ids[3] += 1
    documents[5].supervised[-1] = False
    path.unlink()
    write_documents(path, documents[:8])
    found = document(specflow("features", "verify", folder(store), "--documents", "0", "--json"))
    assert found["damage"] == [
        f"document row-2: other token ids than row 3 of {path.parent}",
        f"document row-5: other supervised tokens than row 6 of {path.parent}",
        f"document row-8: other token ids than row 9 of {path.parent}",
    ]
    shutil.rmtree(path.parent)
    result = specflow("features", "verify", folder(store), "--documents", "0", "--json")
    assert result.exit_code == 0
    assert document(result)["notes"] == ["token ids were not compared: the tokens artifact is not in the store"]


def test_another_target_is_named_field_by_field(store: Path, tmp_path: Path) -> None:
    other = make_tiny_target(tmp_path / "other", 7)
    state_fingerprint(other)
    result = specflow("features", "verify", folder(store), "--target", other, "--json")
    assert result.exit_code == 1
    found = document(result)
    assert [d["field"] for d in found["differences"]] == ["weights_sha256"]
    assert found["probes"] == []
    shown = specflow("features", "verify", folder(store), "--target", other)
    assert "weights_sha256" in shown.stdout
    assert str(other) in shown.stdout


def test_bad_input_has_exit_code_2(made: Path, store: Path, tmp_path: Path) -> None:
    for command in ("stat", "verify"):
        assert specflow("features", command, "0" * 9, "--store", made).exit_code == 2
        assert specflow("features", command, tmp_path).exit_code == 2
        assert specflow("features", command).exit_code == 2
        result = specflow("features", command, key_of("target")[:9], "--store", made, "--json")
        assert result.exit_code == 2
        assert document(result)["errors"][0]["message"] == "this artifact has no features"
    shutil.rmtree(folder(store, "target"))
    result = specflow("features", "verify", folder(store))
    assert (result.exit_code, "is not in its store" in result.stderr) == (2, True)
    assert specflow("features", "verify", folder(store), "--documents", "0").exit_code == 0
    (folder(store) / "store/zarr.json").unlink()
    assert specflow("features", "stat", folder(store)).exit_code == 2
    assert specflow("features", "verify", folder(store), "--documents", "0").exit_code == 1


def test_two_contracts_are_compared(made: Path, store: Path) -> None:
    same = specflow("features", "compare", folder(made), folder(store))
    assert (same.exit_code, "no field that both state differs" in same.stdout) == (0, True), same.output
    fits = specflow("features", "compare", key_of("target")[:9], key_of("features")[:9], "--store", made, "--json")
    assert (fits.exit_code, document(fits)["differences"]) == (0, [])
    assert document(fits)["first"]["kind"] == "features"
    reader = FeatureReader(folder(store))
    path = folder(store) / "contract.json"
    changed = {**reader.contract.to_dict(), "precision": "bf16", "template_sha256": "0" * 64}
    path.unlink()
    FeatureContract.from_dict(changed).write(path)
    told = document(specflow("features", "compare", folder(made), folder(store), "--json"))
    assert {(d["field"], d["must_agree"]) for d in told["differences"]} == {
        ("precision", False), ("template_sha256", False),
    }  # fmt: skip
    result = specflow("features", "compare", folder(store), folder(store, "target"))
    assert result.exit_code == 1
    row = next(line for line in result.stdout.splitlines() if line.startswith("template_sha256"))
    assert row.split()[1] == "000000000000..."
    assert row.endswith("must agree")
    assert specflow("features", "compare", folder(made), made).exit_code == 2
