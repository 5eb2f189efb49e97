"""Every stage refuses artifacts that do not belong together, before it computes anything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specflow.config.bench import BenchParams
from specflow.config.capture import CaptureParams
from specflow.config.export import ExportParams
from specflow.config.verify import VerifyParams
from specflow.drafters.dflash.params import Params
from specflow.drafters.loading import read_manifest
from specflow.features.contract import FeatureContract
from specflow.stages import bench, capture, export, train, verify
from specflow.stages.contract import Artifact, StageError
from specflow.stages.fitting import target_fingerprint
from specflow.targets.target import Target
from tests.serving.helpers import Pipeline, make_pipeline
from tests.stages.pipeline_helpers import FakeContext, artifact, fingerprint_of, inputs, state_fingerprint

FIELDS = {
    "weights_sha256": "0" * 64,
    "config_sha256": "1" * 64,
    "tokenizer_sha256": "2" * 64,
    "template_sha256": "3" * 64,
    "layer_ids": (0, 1),
    "hidden_size": 32,
    "layer_convention": "input_of_layer",
    "last_hidden": "pre_final_norm",
    "precision": "packed",
    "thinking": "on",
}
MAY_DIFFER = ("precision", "thinking")


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return make_pipeline(tmp_path_factory.mktemp("fitting"))


@pytest.fixture(scope="module")
def exported(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    context = FakeContext(tmp_path_factory.mktemp("export"))
    export.run(inputs(pipeline.target, pipeline.drafter), ExportParams(dtype="float32"), context)
    return artifact("export", context.output)


@pytest.fixture(autouse=True)
def _nothing_is_computed(monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline, exported: Artifact) -> None:
    monkeypatch.setattr(Target, "load", lambda *_, **__: pytest.fail("a model was loaded"))


def with_contract(drafter: Artifact, root: Path, **changes: Any) -> Artifact:
    """The drafter, trained on features of another contract."""
    shutil.copytree(drafter.path, root)
    contract = replace(read_manifest(root).feature_contract, **changes)
    manifest = root / "drafter/manifest.json"
    values = {"feature_contract": contract.to_dict(), "feature_contract_hash": contract.hash}
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **values}))
    return replace(drafter, path=root)


def features_with(features: Artifact, root: Path, **changes: Any) -> Artifact:
    root.mkdir()
    (root / "store").symlink_to(features.path / "store")
    replace(FeatureContract.read(features.path / "contract.json"), **changes).write(root / "contract.json")
    return replace(features, path=root)


def changed_target(target: Artifact, root: Path, what: str, *, stated: bool) -> Artifact:
    """The target with one file changed; ``stated``: as another revision, with a fingerprint of its own."""
    shutil.copytree(target.path, root)
    if what == "weights":
        with (root / "model.safetensors").open("r+b") as file:
            file.seek(-1, 2)
            last = file.read(1)
            file.seek(-1, 2)
            file.write(bytes([last[0] ^ 1]))
    elif what == "tokenizer":
        edit(root / "tokenizer.json", lambda t: t.replace('"<|unused|>"', '"<|unusable|>"'))
    elif what == "template":
        edit(root / "chat_template.jinja", lambda t: t + " ")
    else:
        edit(root / "config.json", lambda t: t.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
    if stated:
        state_fingerprint(root)
    return replace(target, path=root, key="u" * 64)


def edit(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text()
    assert change(before) != before
    path.write_text(change(before))


def stages(p: Pipeline, made: Artifact) -> dict[str, Callable[[FakeContext], Any]]:
    """Each stage that reads features or uses a drafter."""
    drafter = Params(method="dflash", num_layers=1, block_size=4)
    all_of = (p.target, p.drafter, made, p.features, p.tokens)
    return {
        "train": lambda c: train.run(inputs(p.target, p.features), drafter, c),
        "export": lambda c: export.run(inputs(p.target, p.drafter), ExportParams(), c),
        "verify": lambda c: verify.run(inputs(*all_of), VerifyParams(precision="fp32", threads=1), c),
        "bench": lambda c: bench.run(
            inputs(p.target, p.drafter, p.tokens), BenchParams(precision="fp32", threads=1), c
        ),
    }


@pytest.mark.parametrize("stage", ["export", "verify", "bench"])
@pytest.mark.parametrize("field", [f for f in FIELDS if f not in MAY_DIFFER])
def test_a_drafter_of_other_features_is_refused(
    pipeline: Pipeline, exported: Artifact, tmp_path: Path, stage: str, field: str
) -> None:
    value = (0, 3) if field == "layer_ids" else FIELDS[field]
    drafter = with_contract(pipeline.drafter, tmp_path / "drafter", **{field: value})
    run = stages(replace(pipeline, drafter=drafter), exported)[stage]
    with pytest.raises(StageError) as refused:
        run(FakeContext(tmp_path / "run"))
    text = str(refused.value)
    assert text.startswith("a drafter and the target it drafts for do not fit together:\n")
    assert f"drafter/dddddddddddd ({drafter.path})" in text
    assert f"target/tttttttttttt ({pipeline.target.path})" in text
    assert sum(line.strip().startswith(field) for line in text.splitlines()) == 1


@pytest.mark.parametrize("field", FIELDS)
def test_verify_with_features_the_drafter_was_not_trained_on(
    pipeline: Pipeline, exported: Artifact, tmp_path: Path, field: str
) -> None:
    features = features_with(pipeline.features, tmp_path / "features", **{field: FIELDS[field]})
    run = stages(replace(pipeline, features=features), exported)["verify"]
    context = FakeContext(tmp_path / "run")
    if field in MAY_DIFFER:
        with pytest.raises(pytest.fail.Exception, match="a model was loaded"):
            run(context)
        old = "fp32" if field == "precision" else "template_default"
        assert f"{field} differs, which is allowed: drafter {old}, features {FIELDS[field]}" in context.messages
        return
    with pytest.raises(StageError) as refused:
        run(context)
    assert str(features.path) in str(refused.value)
    assert f"\n  {field} " in str(refused.value)


def test_verify_with_the_export_of_another_drafter(pipeline: Pipeline, exported: Artifact, tmp_path: Path) -> None:
    shutil.copytree(exported.path, tmp_path / "export")
    path = tmp_path / "export/draft/feature_contract.json"
    replace(FeatureContract.read(path), precision="bf16").write(path)
    run = stages(pipeline, replace(exported, path=tmp_path / "export"))["verify"]
    with pytest.raises(StageError, match=r"(?s)an export and the drafter .*precision +bf16 +fp32\n"):
        run(FakeContext(tmp_path / "run"))
    path.write_text("{}")
    with pytest.raises(StageError, match="has no readable feature contract"):
        run(FakeContext(tmp_path / "run"))


CHANGES = ("weights", "config", "tokenizer", "template")


@pytest.mark.parametrize("stage", ["train", "export", "verify", "bench"])
@pytest.mark.parametrize("what", CHANGES)
def test_another_revision_of_the_target_is_refused(
    pipeline: Pipeline, exported: Artifact, tmp_path: Path, stage: str, what: str
) -> None:
    target = changed_target(pipeline.target, tmp_path / "target", what, stated=True)
    run = stages(replace(pipeline, target=target), exported)[stage]
    with pytest.raises(StageError) as refused:
        run(FakeContext(tmp_path / "run"))
    text = str(refused.value)
    old, new = fingerprint_of(pipeline.target)[f"{what}_sha256"], fingerprint_of(target)[f"{what}_sha256"]
    (row,) = [line.split() for line in text.splitlines() if "_sha256" in line]
    assert row[0] == f"{what}_sha256"
    assert old.startswith(row[1].removesuffix("...")), "features and drafter stand first"
    assert new.startswith(row[2].removesuffix("..."))
    assert str(target.path) in text


@pytest.mark.parametrize("stage", ["capture", "train", "export", "verify", "bench"])
@pytest.mark.parametrize("what", CHANGES)
def test_a_target_changed_after_it_was_made_is_refused(
    pipeline: Pipeline, exported: Artifact, tmp_path: Path, stage: str, what: str
) -> None:
    target = changed_target(pipeline.target, tmp_path / "target", what, stated=False)
    changed = replace(pipeline, target=target)
    params = CaptureParams(layer_ids=(0, 2), precision="fp32", threads=1)
    run = {
        "capture": lambda c: capture.run(inputs(target, pipeline.tokens), params, c),
        **stages(changed, exported),
    }[stage]
    with pytest.raises(StageError) as refused:
        run(FakeContext(tmp_path / "run"))
    text = str(refused.value)
    assert text.startswith(f"target target/uuuuuuuuuuuu ({target.path}) was changed after it was made:\n")
    (row,) = [line.split() for line in text.splitlines() if "_sha256" in line]
    assert row[0] == f"{what}_sha256"
    assert fingerprint_of(pipeline.target)[row[0]].startswith(row[1].removesuffix("..."))
    assert target_fingerprint(pipeline.target) == fingerprint_of(pipeline.target)
