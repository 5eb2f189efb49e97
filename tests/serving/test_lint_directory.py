"""Lint of whole directories: ours wherever they are copied to, and drafters from elsewhere in the forms that occur."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specflow.config.export import ExportParams
from specflow.serving.consequences import CONSEQUENCES
from specflow.serving.draft_directory import manifest_of, open_draft
from specflow.serving.layouts.dflash_reading import default_layer_ids
from specflow.serving.layouts.registry import get_layout, layout_names, method_of
from specflow.serving.lint import COMMON, Report, lint
from specflow.stages import export
from tests.cli.support import document, specflow
from tests.serving.helpers import MASK_ID, random_drafter
from tests.stages.pipeline_helpers import FakeContext, inputs, tiny_target

ENGINE = "sglang-0.5.23"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``target``, ``drafter`` and ``export``."""
    root = tmp_path_factory.mktemp("directories")
    target = tiny_target(root)
    drafter = random_drafter(root / "drafter", target)
    context = FakeContext(root / "run")
    export.run(inputs(target, drafter), ExportParams(dtype="bfloat16"), context)
    context.output.rename(root / "export")
    return root


def run(directory: Path, root: Path, *, target: bool = True, drafter: bool = True) -> Report:
    opened = open_draft(
        directory, target=root / "target" if target else None, drafter=root / "drafter" if drafter else None
    )
    return lint(opened, engine=ENGINE)


def copied(root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(root / "export/draft", tmp_path / "copy"))


def edit_config(directory: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    config = json.loads((directory / "config.json").read_text())
    change(config)
    (directory / "config.json").write_text(json.dumps(config))


def edit_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(str(directory / "model.safetensors"))
    change(tensors)
    save_file(tensors, str(directory / "model.safetensors"))


def test_every_rule_has_its_consequence_at_serving() -> None:
    rules = {name for method in layout_names() for name in get_layout(method).RULES} | set(COMMON)
    assert rules <= set(CONSEQUENCES)
    assert all(text and text[0].islower() and not text.endswith(".") for text in CONSEQUENCES.values())


@pytest.mark.parametrize("method", layout_names())
def test_the_architecture_tells_the_method(method: str) -> None:
    for name in get_layout(method).ARCHITECTURES:
        assert method_of({"architectures": [name]}) == method


def test_ours_is_judged_in_full_with_everything_at_hand(root: Path) -> None:
    report = run(root / "export", root)
    assert report.findings == ()
    assert report.not_judged == {}


def test_a_copy_of_ours_needs_no_store(root: Path, tmp_path: Path) -> None:
    report = run(copied(root, tmp_path), root, drafter=False)
    assert report.findings == ()
    assert report.not_judged == {"dtype": "the trained drafter", "values": "the trained drafter"}
    alone = run(tmp_path / "copy", root, target=False, drafter=False)
    assert alone.findings == ()
    assert {"positions", "sizes", "mask-token", "layer-ids", "target"} <= set(alone.not_judged)


def test_a_tensor_that_changed_after_the_export_is_found_without_the_trained_one(root: Path, tmp_path: Path) -> None:
    directory = copied(root, tmp_path)
    edit_tensors(directory, lambda t: t.update({"fc.weight": t["fc.weight"] * 1.5}))
    found = [(f.check, f.where) for f in run(directory, root, drafter=False).findings]
    assert found == [("as-exported", "fc.weight")]


def test_another_target_is_found(root: Path, tmp_path: Path) -> None:
    other = tiny_target(tmp_path / "other", seed=7)
    opened = open_draft(root / "export", target=other.path)
    assert [(f.check, f.where) for f in lint(opened, engine=ENGINE).findings] == [("target", "weights")]


def public(root: Path, tmp_path: Path) -> Path:
    """As others publish a DFlash drafter: few keys, one form of each, prefixed names, a copy of the embedding."""
    directory = copied(root, tmp_path)
    (directory / "manifest.json").unlink()
    (directory / "feature_contract.json").unlink()

    def strip(config: dict[str, Any]) -> None:
        for key in ("rope_parameters", "torch_dtype", "is_causal", "layer_types", "sliding_window", "rope_scaling"):
            del config[key]
        del config["dflash_config"]["block_size"], config["dflash_config"]["num_target_layers"]
        config.update(initializer_range=0.02, auto_map={"AutoModel": "dflash.DFlashDraftModel"})

    edit_config(directory, strip)
    tensors = load_file(str(directory / "model.safetensors"))
    renamed = {f"model.{name}": tensor for name, tensor in tensors.items() if name != "fc.weight"}
    first = {"encoder.fc.weight": tensors["fc.weight"], "model.embed_tokens.weight": torch.zeros(300, 64)}
    (directory / "model.safetensors").unlink()
    save_file(renamed, str(directory / "model-00001-of-00002.safetensors"))
    save_file(first, str(directory / "model-00002-of-00002.safetensors"))
    return directory


def test_a_sound_public_drafter_passes(root: Path, tmp_path: Path) -> None:
    report = run(public(root, tmp_path), root, drafter=False)
    assert report.findings == ()
    assert len(report.tensors) == 25  # the embedding is the target's
    assert set(report.not_judged.values()) <= {
        "our manifest", "the trained drafter", "the drafter's own config", "our manifest and the trained drafter",
    }  # fmt: skip
    manifest = manifest_of(tmp_path / "copy")
    assert {k: manifest[k] for k in ("method", "block_size", "num_proposals", "dtype")} == {
        "method": "dflash", "block_size": 4, "num_proposals": 3, "dtype": "bfloat16",
    }  # fmt: skip


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str, str]] = {
    "last layer": (lambda c: c["dflash_config"].update(target_layer_ids=[0, 3]), "layer-ids", "last layer 3"),
    "order": (lambda c: c["dflash_config"].update(target_layer_ids=[2, 0]), "layer-ids", "strictly increasing"),
    "mask id": (lambda c: c["dflash_config"].update(mask_token_id=900), "mask-token", "[0, 300)"),
    "no mask id": (lambda c: c["dflash_config"].pop("mask_token_id"), "mask-token", "found None"),
    "mask token": (lambda c: c["dflash_config"].update(mask_token_id=MASK_ID - 1), "mask-token", "tokenizer"),
    "context": (lambda c: c.update(max_position_embeddings=512), "positions", ">= 4096"),
    "no rope": (lambda c: c.pop("rope_theta"), "rope", "neither"),
    "width": (lambda c: c.update(hidden_size=32), "sizes", "64, the target's"),
    "heads": (lambda c: c.update(head_dim=8), "shapes", "q_proj"),
    "layers": (lambda c: c.update(num_hidden_layers=3), "tensors", "layers.2.mlp.up_proj.weight"),
    "block": (lambda c: c.update(block_size=1), "block", "at least 2"),
    "no dtype": (lambda c: c.pop("dtype"), "dtype", "'bfloat16'"),
    "no width": (lambda c: c.pop("hidden_size"), "config-keys", "hidden_size"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_public_drafter_is_found(root: Path, tmp_path: Path, fault: str) -> None:
    change, check, said = FAULTS[fault]
    directory = public(root, tmp_path)
    edit_config(directory, change)
    findings = [str(f) for f in run(directory, root, drafter=False).findings if f.check == check]
    assert any(said in f for f in findings), findings


def test_unknown_missing_and_non_finite_tensors_of_a_public_drafter_are_found(root: Path, tmp_path: Path) -> None:
    directory = public(root, tmp_path)
    path = directory / "model-00001-of-00002.safetensors"
    tensors = load_file(str(path))
    tensors["model.layer.0.mlp.up_proj.weight"] = tensors.pop("model.layers.0.mlp.up_proj.weight")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, str(path))
    found = {(f.check, f.where) for f in run(directory, root, drafter=False).findings}
    assert found == {
        ("tensors", "layers.0.mlp.up_proj.weight"),
        ("tensors", "layer.0.mlp.up_proj.weight"),
        ("values", "norm.weight"),
    }


@pytest.mark.parametrize(
    ("target", "draft", "expected"),
    [(36, 5, [1, 9, 17, 25, 33]), (28, 1, [14]), (4, 3, [1, 1, 1]), (30, 4, [1, 10, 18, 27])],
)
def test_layers_that_the_engine_takes_by_itself(target: int, draft: int, expected: list[int]) -> None:
    assert default_layer_ids(target, draft) == expected


def test_command_says_what_a_fault_does_and_exits_with_1(root: Path, tmp_path: Path) -> None:
    directory = public(root, tmp_path)
    assert specflow("lint", directory, "--target", root / "target").exit_code == 0
    edit_config(directory, lambda c: c["dflash_config"].update(target_layer_ids=[0, 3]))
    done = specflow("lint", directory, "--target", root / "target")
    assert done.exit_code == 1
    assert "[layer-ids] dflash_config.target_layer_ids" in done.stdout
    assert "at serving: the engine captures other layers" in done.stdout
    assert "1 finding" in done.stdout
    said = document(specflow("lint", directory, "--json"))
    assert said["findings"] == []  # the target's depth is not known
    assert said["not_judged"]["positions"] == "the target"
    told = document(specflow("lint", directory, "--target", root / "target", "--json"))
    assert told["findings"][0]["consequence"] == CONSEQUENCES["layer-ids"]


def test_what_is_no_draft_is_bad_input(root: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, said in ((tmp_path / "empty", "config.json"), (root / "target", "LlamaForCausalLM")):
        done = specflow("lint", path)
        assert done.exit_code == 2
        assert said in done.stderr
    directory = copied(root, tmp_path)
    (directory / "model.safetensors").write_bytes(b"torn")
    done = specflow("lint", directory)
    assert done.exit_code == 2
    assert "whole safetensors file" in done.stderr
