"""The EAGLE-3 export: each planted fault is found by its own check, a sound one has none and reads back as trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specflow.drafters.dflash.initialise import initialise_random
from specflow.drafters.eagle3.geometry import Eagle3Geometry, geometry_like_target
from specflow.drafters.eagle3.network import Eagle3Network
from specflow.drafters.loading import Manifest, load_network, save_drafter
from specflow.features.contract import FeatureContract
from specflow.serving.draft import Draft, read_draft
from specflow.serving.launch import launch_flags
from specflow.serving.layouts import eagle3
from specflow.serving.layouts.common import write_layout
from specflow.serving.lint import COMMON, lint
from specflow.serving.verification.parity import export_as_drafter
from tests.stages.pipeline_helpers import fingerprint_of, tiny_target

ENGINE = "sglang-0.5.23"
IDS = torch.tensor([i for i in range(300) if i % 7])
LAYERS = (0, 2)


def exported(root: Path, *, own_head: bool = True, dtype: str = "bfloat16") -> Draft:
    target = tiny_target(root)
    config = json.loads((target.path / "config.json").read_text())
    geometry = geometry_like_target(
        config, num_layers=2, steps=3, layer_ids=LAYERS, draft_vocab_size=len(IDS) if own_head else None, fc_norm=True
    )
    network = Eagle3Network(geometry, draft_ids=IDS if own_head else None)
    initialise_random(network, seed=1)
    fingerprint = fingerprint_of(target)
    manifest = Manifest(
        method="eagle3",
        block_size=4,
        num_proposals=3,
        sample_from_anchor=True,
        layer_ids=LAYERS,
        feature_contract=FeatureContract.for_target(
            fingerprint, layer_ids=LAYERS, hidden_size=geometry.hidden_size, precision="fp32"
        ),
        target_fingerprint=fingerprint,
    )
    drafter = root / "drafter"
    save_drafter(drafter, network, manifest)
    trained = load_file(str(drafter / "model.safetensors"))
    own, stated = (json.loads((drafter / f"{name}.json").read_text()) for name in ("config", "manifest"))
    layout = eagle3.layout_config(own, stated, config, dtype=dtype)
    write_layout(root / "draft", layout, eagle3.export_tensors(trained, dtype=dtype))
    return read_draft(root / "draft", trained=trained, geometry=own, manifest=stated, target=config, dtype=dtype)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("eagle3")


@pytest.fixture(scope="module")
def sound(place: Path) -> Draft:
    return exported(place)


def with_config(**changes: Any) -> Callable[[Draft], Draft]:
    return lambda draft: replace(draft, config={**draft.config, **changes})


def with_method(**changes: Any) -> Callable[[Draft], Draft]:
    return lambda draft: with_config(eagle_config={**draft.config["eagle_config"], **changes})(draft)


def with_ids(ids: list[int]) -> Callable[[Draft], Draft]:
    """In config and manifest alike, so that only the rule itself can object."""
    return lambda draft: replace(
        with_method(eagle_aux_hidden_state_layer_ids=ids)(draft), manifest={**draft.manifest, "layer_ids": ids}
    )


def with_tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Draft], Draft]:
    return lambda draft: replace(draft, tensors={**draft.tensors, name: change(draft.tensors[name])})


def without_tensor(name: str) -> Callable[[Draft], Draft]:
    return lambda draft: replace(draft, tensors={n: t for n, t in draft.tensors.items() if n != name})


def with_target(**changes: Any) -> Callable[[Draft], Draft]:
    return lambda draft: replace(draft, target={**draft.target, **changes})


FAULTS: dict[str, tuple[Callable[[Draft], Draft], str, str]] = {
    "unknown key": (with_config(layer_types=[]), "config-keys", "'layer_types'"),
    "unknown method key": (with_method(norm_after_fc=True), "config-keys", "'norm_after_fc'"),
    "other architecture": (with_config(architectures=["LlamaForCausalLM"]), "constants", "architectures"),
    "biases": (with_config(bias=True), "constants", "bias"),
    "tied head": (with_config(tie_word_embeddings=True), "constants", "tie_word_embeddings"),
    "one feature too many": (with_config(num_aux_hidden_states=3), "constants", "num_aux_hidden_states"),
    "number of layers": (with_config(num_hidden_layers=1), "sizes", "num_hidden_layers"),
    "ids shifted by one": (with_method(eagle_aux_hidden_state_layer_ids=[1, 3]), "layer-ids", "(manifest)"),
    "last layer": (with_ids([0, 3]), "layer-ids", "last layer 3"),
    "one layer": (with_ids([2]), "features", "at least two layers"),
    "target with other ids": (with_target(model_type="deepseek_v3"), "features", "deepseek_v3"),
    "no features": (with_method(use_aux_hidden_state=False), "features", "use_aux_hidden_state"),
    "norm before fc": (with_method(norm_before_fc=True), "features", "norm_before_fc"),
    "norm of features forgotten": (with_config(fc_norm=False), "recurrence", "fc_norm"),
    "normed state": (with_config(norm_output=True), "recurrence", "norm_output"),
    "other number of steps": (with_method(num_speculative_steps=4), "steps", "3 (manifest)"),
    "head of the target": (with_config(draft_vocab_size=None), "vocabulary", "as trained"),
    "ids for offsets": (with_tensor("d2t", lambda t: t + torch.arange(len(t))), "vocabulary", "ids themselves"),
    "offsets off by one": (with_tensor("d2t", lambda t: t - 1), "vocabulary", "d2t leads to"),
    "offsets as floats": (with_tensor("d2t", lambda t: t.float()), "vocabulary", "integer offsets"),
    "mask of other tokens": (with_tensor("t2d", lambda t: ~t), "vocabulary", "marked tokens"),
    "no offsets": (without_tensor("d2t"), "tensors", "d2t"),
    "context too short": (with_config(max_position_embeddings=64), "positions", ">= 4096"),
    "rope forms disagree": (with_config(rope_theta=3.0), "rope", "3.0"),
    "dtype null": (with_config(dtype=None), "dtype", "dtype"),
    "missing head": (without_tensor("lm_head.weight"), "tensors", "lm_head.weight"),
    "missing norm": (without_tensor("fc_norm.1.weight"), "tensors", "fc_norm.1.weight"),
    "first layer as narrow as the second": (
        with_tensor("midlayer.self_attn.q_proj.weight", lambda t: t[:, :64]), "shapes", "midlayer.self_attn.q_proj",
    ),
    "random head": (with_tensor("lm_head.weight", torch.randn_like), "values", "lm_head.weight"),
}  # fmt: skip


def test_sound_export_has_no_finding(sound: Draft) -> None:
    report = lint(sound, engine=ENGINE)
    assert report.findings == ()
    assert report.tensors["d2t"]["dtype"] == "int64"
    assert report.tensors["midlayer.self_attn.k_proj.weight"]["shape"] == [32, 128]
    assert report.tensors["layers.1.self_attn.k_proj.weight"]["shape"] == [32, 64]
    assert {check for _, check, _ in FAULTS.values()} == set(report.checks) - set(COMMON)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(sound: Draft, fault: str) -> None:
    plant, check, said = FAULTS[fault]
    findings = [str(f) for f in lint(plant(sound), engine=ENGINE).findings if f.check == check]
    assert any(said in f for f in findings), findings or "nothing found"


def test_the_export_reads_back_as_the_drafter(sound: Draft, place: Path) -> None:
    assert eagle3.geometry_of(sound.config) == Eagle3Geometry.from_dict(sound.geometry).to_dict()
    network = load_network(export_as_drafter(place / "draft", place / "drafter", place / "back"))
    for name, value in network.state_dict().items():
        trained = sound.trained[name]
        wanted = trained.bfloat16().float() if trained.is_floating_point() else trained
        assert torch.equal(value, wanted), name


def test_transformers_reads_what_was_written(sound: Draft, place: Path) -> None:
    from transformers import AutoConfig

    read = AutoConfig.from_pretrained(str(place / "draft"))
    assert {key: getattr(read, key) for key in eagle3.read_back(sound.config)} == eagle3.read_back(sound.config)


def test_with_the_targets_head_nothing_of_a_vocabulary_is_exported(tmp_path: Path) -> None:
    draft = exported(tmp_path, own_head=False, dtype="float32")
    assert lint(draft, engine=ENGINE).findings == ()
    assert draft.config["draft_vocab_size"] is None
    assert not {"d2t", "t2d", "lm_head.weight"} & draft.tensors.keys()


def test_layer_ids_mean_outputs_or_are_refused(sound: Draft) -> None:
    """Explicit id k is the output of layer k, except for targets that ask for a first id of 1."""
    cases = {("llama", 0): True, ("qwen3", 0): True, ("deepseek_v3", 1): True, ("deepseek_v3", 0): False}
    cases[("glm4_moe_lite", 0)] = False
    for (kind, first), served in cases.items():
        manifest = {**sound.manifest, "layer_ids": [first, 2]}
        target = {**sound.target, "model_type": kind}
        if served:
            config = eagle3.layout_config(sound.geometry, manifest, target, dtype="bfloat16")
            assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [first, 2]
        else:
            with pytest.raises(ValueError, match="unless the first id is 1"):
                eagle3.layout_config(sound.geometry, manifest, target, dtype="bfloat16")


def test_flags_are_those_of_a_chain(sound: Draft) -> None:
    flags = launch_flags(sound.manifest)
    assert {name: value for name, value in flags.items() if "speculative" in name} == {
        "--speculative-algorithm": "EAGLE3",
        "--speculative-draft-model-path": "draft",
        "--speculative-num-steps": "3",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "4",
    }
    with pytest.raises(ValueError, match="block_size"):
        launch_flags({**sound.manifest, "block_size": 3})
