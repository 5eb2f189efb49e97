"""Each planted fault of an export is found, by its own check and message, and a sound export has none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specflow.serving.draft import Draft, read_draft
from specflow.serving.layouts import dflash
from specflow.serving.layouts.common import rope_of, write_layout
from specflow.serving.lint import lint
from tests.serving.helpers import MASK_ID, random_drafter
from tests.stages.pipeline_helpers import tiny_target

ENGINE = "sglang-0.5.23"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Draft:
    root = tmp_path_factory.mktemp("lint")
    target = tiny_target(root)
    drafter = random_drafter(root / "drafter", target).path / "drafter"
    geometry, manifest, config = (
        json.loads(p.read_text())
        for p in (drafter / "config.json", drafter / "manifest.json", target.path / "config.json")
    )
    trained = load_file(str(drafter / "model.safetensors"))
    layout = dflash.layout_config(geometry, manifest, config, dtype="bfloat16")
    write_layout(root / "draft", layout, dflash.export_tensors(trained, dtype="bfloat16"))
    return read_draft(
        root / "draft", trained=trained, geometry=geometry, manifest=manifest, target=config, dtype="bfloat16"
    )


def with_config(**changes: Any) -> Callable[[Draft], Draft]:
    return lambda draft: replace(draft, config={**draft.config, **changes})


def without_config(key: str) -> Callable[[Draft], Draft]:
    return lambda draft: replace(draft, config={k: v for k, v in draft.config.items() if k != key})


def with_method(**changes: Any) -> Callable[[Draft], Draft]:
    return lambda draft: replace(
        draft, config={**draft.config, "dflash_config": {**draft.config["dflash_config"], **changes}}
    )


def with_ids(ids: list[int]) -> Callable[[Draft], Draft]:
    """In the config and the manifest alike, so that only the rule itself can object."""
    return lambda draft: replace(
        with_method(target_layer_ids=ids)(draft), manifest={**draft.manifest, "layer_ids": ids}
    )


def with_tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Draft], Draft]:
    return lambda draft: replace(draft, tensors={**draft.tensors, name: change(draft.tensors[name])})


def without_tensor(name: str) -> Callable[[Draft], Draft]:
    return lambda draft: replace(draft, tensors={n: t for n, t in draft.tensors.items() if n != name})


def extra_tensor(draft: Draft) -> Draft:
    return replace(draft, tensors={**draft.tensors, "lm_head.weight": torch.zeros(2, 2, dtype=torch.bfloat16)})


def one_value(tensor: torch.Tensor) -> torch.Tensor:
    changed = tensor.clone()
    changed.view(-1)[3] += 0.5
    return changed


def with_nan(tensor: torch.Tensor) -> torch.Tensor:
    changed = tensor.clone()
    changed.view(-1)[0] = float("nan")
    return changed


def test_sound_export_has_no_finding(sound: Draft) -> None:
    report = lint(sound, engine=ENGINE)
    assert report.findings == ()
    assert len(report.tensors) == 3 + 2 * 11
    assert report.tensors["fc.weight"] == {
        "shape": [64, 128], "dtype": "bfloat16", "sha256": report.tensors["fc.weight"]["sha256"],
    }  # fmt: skip
    assert report.as_json()["passed"] is True


FAULTS = {
    "missing tensor": (without_tensor("layers.1.mlp.up_proj.weight"), "tensors", "layers.1.mlp.up_proj.weight"),
    "extra tensor": (extra_tensor, "tensors", "lm_head.weight"),
    "wrong shape": (with_tensor("norm.weight", lambda t: t[:-1]), "shapes", "norm.weight"),
    "changed tensor": (with_tensor("fc.weight", one_value), "values", "fc.weight"),
    "not finite": (with_tensor("fc.weight", with_nan), "values", "non-finite"),
    "wrong dtype of a tensor": (with_tensor("norm.weight", lambda t: t.float()), "dtype", "norm.weight"),
    "dtype null": (with_config(dtype=None), "dtype", "dtype"),
    "torch_dtype float16": (with_config(torch_dtype="float16"), "dtype", "torch_dtype"),
    "older rope form missing": (without_config("rope_theta"), "rope", "rope_theta"),
    "newer rope form missing": (without_config("rope_parameters"), "rope", "rope_parameters.rope_theta"),
    "rope forms disagree": (with_config(rope_theta=500.0), "rope", "500.0"),
    "rope scaling for plain rope": (with_config(rope_scaling={"rope_type": "yarn"}), "rope", "rope_scaling"),
    "last layer": (with_ids([0, 3]), "layer-ids", "cannot capture the output of the last layer 3"),
    "ids not increasing": (with_ids([2, 0]), "layer-ids", "strictly increasing"),
    "ids twice": (with_ids([2, 2]), "layer-ids", "strictly increasing"),
    "ids shifted by one": (with_method(target_layer_ids=[1, 2]), "layer-ids", "(manifest)"),
    "mask id out of range": (with_method(mask_token_id=10_000), "mask-token", "10000"),
    "mask id is a flag": (with_method(mask_token_id=True), "mask-token", "True"),
    "another mask id": (with_method(mask_token_id=8), "mask-token", "(manifest)"),
    "unknown key": (with_config(sliding_windw=3), "config-keys", "'sliding_windw'"),
    "unknown method key": (with_method(attention_value_scale=2.0), "config-keys", "'attention_value_scale'"),
    "missing key": (without_config("layer_types"), "config-keys", "'layer_types'"),
    "context too short": (with_config(max_position_embeddings=128), "positions", ">= 4096"),
    "block is the number of proposals": (with_config(block_size=3), "block", "4, anchor included"),
    "nested block differs": (with_method(block_size=16), "block", "dflash_config.block_size"),
    "causal block": (with_config(is_causal=True), "visibility", "is_causal"),
    "a window without layers": (with_config(sliding_window=64), "visibility", "sliding_window"),
    "sliding layers": (with_config(layer_types=["sliding_attention"] * 2), "visibility", "layer_types"),
    "other architecture": (with_config(architectures=["Qwen3ForCausalLM"]), "constants", "architectures"),
    "epsilon of the class": (with_config(rms_norm_eps=1e-5), "sizes", "rms_norm_eps"),
    "head size derived": (with_config(head_dim=32), "sizes", "head_dim"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(sound: Draft, fault: str) -> None:
    plant, check, said = FAULTS[fault]
    findings = [str(f) for f in lint(plant(sound), engine=ENGINE).findings if f.check == check]
    assert any(said in f for f in findings), findings or "nothing found"


def test_all_faults_are_told_at_once(sound: Draft) -> None:
    broken = without_tensor("norm.weight")(with_config(rope_theta=1.0)(with_method(mask_token_id=-1)(sound)))
    checks = {f.check for f in lint(broken, engine=ENGINE).findings}
    assert {"tensors", "values", "rope", "mask-token"} <= checks


def test_a_broken_config_does_not_hide_the_other_faults(sound: Draft) -> None:
    broken = replace(sound, config={k: v for k, v in sound.config.items() if k != "dflash_config"}, dtype="float32")
    checks = {f.check for f in lint(broken, engine=ENGINE).findings}
    assert {"config-keys", "layer-ids", "mask-token", "dtype"} <= checks


def test_values_out_of_the_range_of_a_dtype_are_refused() -> None:
    tensors = {"a": torch.tensor([1.0]), "b": torch.tensor([70000.0]), "c": torch.tensor([float("inf")])}
    with pytest.raises(ValueError, match=r"b: largest magnitude 7e\+04; c: largest magnitude inf"):
        dflash.export_tensors(tensors, dtype="float16")
    assert dflash.export_tensors({"b": tensors["b"]}, dtype="bfloat16")["b"].dtype == torch.bfloat16


def test_rope_is_read_from_either_form() -> None:
    assert rope_of({"rope_theta": 5}) == {"rope_theta": 5.0, "rope_type": "default"}
    newer = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 7.0, "factor": 2.0}}
    assert rope_of(newer) == {"rope_type": "yarn", "rope_theta": 7.0, "factor": 2.0}
    older = {"rope_theta": 7.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert rope_of(older) == {"rope_type": "linear", "rope_theta": 7.0, "factor": 2.0}
    with pytest.raises(ValueError, match="neither"):
        rope_of({})
    with pytest.raises(ValueError, match="one rotary base"):
        rope_of({"rope_theta": 1.0, "rope_parameters": {"rope_theta": 2.0}})


def test_geometry_survives_the_layout(sound: Draft) -> None:
    assert dflash.geometry_of(sound.config) == {**sound.geometry, "layer_ids": list(sound.geometry["layer_ids"])}


def test_scaled_rope_survives_the_layout(sound: Draft, tmp_path: Path) -> None:
    scaled = {"rope_type": "yarn", "rope_theta": 9.0, "factor": 4.0, "original_max_position_embeddings": 64}
    geometry = {**sound.geometry, "rope_parameters": scaled}
    config = dflash.layout_config(geometry, sound.manifest, sound.target, dtype="bfloat16")
    assert config["rope_scaling"] == {k: v for k, v in scaled.items() if k != "rope_theta"}
    assert config["rope_theta"] == 9.0
    found = lint(replace(sound, config=config, geometry=geometry), engine=ENGINE)
    assert found.findings == ()
    assert dflash.geometry_of(config)["rope_parameters"] == scaled


@pytest.mark.parametrize("form", ["rope_scaling", "rope_parameters"])
def test_another_factor_of_the_rope_is_found_in_either_form(sound: Draft, form: str) -> None:
    scaled = {"rope_type": "yarn", "rope_theta": 9.0, "factor": 4.0, "original_max_position_embeddings": 64}
    geometry = {**sound.geometry, "rope_parameters": scaled}
    config = dflash.layout_config(geometry, sound.manifest, sound.target, dtype="bfloat16")
    config[form] = {**config[form], "factor": 8.0}
    findings = lint(replace(sound, config=config, geometry=geometry), engine=ENGINE).findings
    assert [(f.check, f.where) for f in findings] == [("rope", form)]
    assert "'factor': 8.0" in findings[0].found
    assert "'factor': 4.0" in findings[0].expected


def test_the_mask_token_must_have_its_id_in_the_tokenizer(sound: Draft) -> None:
    name = sound.manifest["mask_token"]
    assert lint(replace(sound, token_ids={name: MASK_ID}), engine=ENGINE).findings == ()
    for ids, said in (({name: 8}, "id 8, as in"), ({}, "id None, as in")):
        findings = lint(replace(sound, token_ids=ids), engine=ENGINE).findings
        assert [f.check for f in findings] == ["mask-token"]
        assert said in findings[0].expected
    assert "(manifest)" in str(lint(with_method(mask_token="<|other|>")(sound), engine=ENGINE).findings)


def test_another_layer_convention_is_refused(sound: Draft) -> None:
    manifest = {**sound.manifest, "layer_convention": "input_of_layer"}
    with pytest.raises(ValueError, match="'input_of_layer'"):
        dflash.layout_config(sound.geometry, manifest, sound.target, dtype="bfloat16")
    with pytest.raises(ValueError, match="no lint rules"):
        lint(sound, engine="sglang-9.9")
