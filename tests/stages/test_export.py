"""The export stage: what it writes, and that it refuses a drafter that an engine would serve badly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file

from specflow.config.export import ExportParams
from specflow.drafters.loading import read_manifest
from specflow.features.contract import FeatureContract
from specflow.serving.verification.parity import export_as_drafter
from specflow.stages import export
from specflow.stages.contract import Artifact, StageError
from tests.serving.helpers import random_drafter
from tests.stages.pipeline_helpers import FakeContext, inputs, tiny_target, tree


@pytest.fixture
def made(tmp_path: Path) -> tuple[Artifact, Artifact]:
    target = tiny_target(tmp_path)
    return target, random_drafter(tmp_path / "drafter", target)


def run(made: tuple[Artifact, Artifact], root: Path, dtype: Literal["bfloat16", "float32"]) -> FakeContext:
    context = FakeContext(root)
    metrics = export.run(inputs(*made), ExportParams(dtype=dtype), context)
    assert metrics["tensors"] == 25
    assert metrics["dtype"] == dtype
    return context


def test_payload(made: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    context = run(made, tmp_path / "run", "bfloat16")
    assert sorted(tree(context.output)) == [
        "draft/README.md", "draft/config.json", "draft/feature_contract.json", "draft/manifest.json",
        "draft/model.safetensors", "launch.json", "lint.json",
    ]  # fmt: skip
    config = json.loads((context.output / "draft/config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["dflash_config"] == {
        "mask_token": "<|unused|>", "mask_token_id": 299, "target_layer_ids": [0, 2], "num_target_layers": 4,
        "block_size": 4,
    }  # fmt: skip
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10000.0
    assert config["max_position_embeddings"] == 4096
    assert json.loads((context.output / "lint.json").read_text())["passed"] is True
    flags = json.loads((context.output / "launch.json").read_text())["flags"]
    assert flags["--speculative-num-draft-tokens"] == "4"
    assert any("--speculative-algorithm DFLASH" in message for message in context.messages)
    manifest = json.loads((context.output / "draft/manifest.json").read_text())
    assert manifest["layer_convention"] == "output_of_layer"
    assert manifest["drafter_key"] == made[1].key
    contract = read_manifest(made[1].path).feature_contract
    assert FeatureContract.read(context.output / "draft/feature_contract.json") == contract
    assert manifest["feature_contract"] == contract.to_dict()


def test_tensors_are_the_trained_ones(made: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    trained = load_file(str(made[1].path / "drafter/model.safetensors"))
    exact = load_file(str(run(made, tmp_path / "exact", "float32").output / "draft/model.safetensors"))
    rounded = load_file(str(run(made, tmp_path / "rounded", "bfloat16").output / "draft/model.safetensors"))
    assert trained.keys() == exact.keys() == rounded.keys()
    for name, tensor in trained.items():
        assert torch.equal(exact[name], tensor)
        assert torch.equal(rounded[name], tensor.bfloat16())


def test_export_loads_as_a_drafter_again(made: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    from specflow.drafters.loading import load_network

    context = run(made, tmp_path / "run", "float32")
    drafter = made[1].path / "drafter"
    again = load_network(export_as_drafter(context.output / "draft", drafter, tmp_path / "again"))
    want = load_network(drafter)
    assert again.geometry == want.geometry
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), want.parameters(), strict=True))


def test_same_inputs_give_the_same_bytes(made: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    first, second = (tree(run(made, tmp_path / n, "bfloat16").output) for n in ("a", "b"))
    assert first == second


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_faults_of_a_drafter_are_listed_together(made: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    edit(made[1].path / "drafter/manifest.json", layer_ids=[0, 3], mask_token_id=9999)
    context = FakeContext(tmp_path / "run")
    with pytest.raises(StageError) as error:
        export.run(inputs(*made), ExportParams(), context)
    assert "[layer-ids]" in str(error.value)
    assert "last layer 3" in str(error.value)
    assert "[mask-token]" in str(error.value)


def test_geometry_that_contradicts_the_weights_is_refused(made: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    edit(made[1].path / "drafter/config.json", intermediate_size=64)
    with pytest.raises(StageError, match=r"\[shapes\] layers.0.mlp.down_proj.weight: expected \(64, 64\)"):
        export.run(inputs(*made), ExportParams(), FakeContext(tmp_path / "run"))


def test_a_manifest_without_launch_flags_is_refused(made: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    edit(made[1].path / "drafter/manifest.json", num_proposals=4)
    with pytest.raises(StageError, match="num_proposals = block_size - 1"):
        export.run(inputs(*made), ExportParams(), FakeContext(tmp_path / "run"))
