"""The EAGLE export: each planted fault is found by its own check, a sound one has none and reads back as trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specflow.drafters.dflash.initialise import initialise_random
from specflow.drafters.eagle.geometry import EagleGeometry, geometry_like_target
from specflow.drafters.eagle.network import EagleNetwork
from specflow.drafters.loading import Manifest, load_network, save_drafter
from specflow.features.contract import FeatureContract
from specflow.serving.draft import TOKEN_MAP, Draft, read_draft
from specflow.serving.draft_directory import open_draft
from specflow.serving.launch import launch_flags
from specflow.serving.layouts import eagle
from specflow.serving.layouts.common import write_layout
from specflow.serving.lint import COMMON, lint
from specflow.serving.settings import effective_settings, expected_settings
from specflow.serving.verification.parity import export_as_drafter
from tests.stages.pipeline_helpers import fingerprint_of, tiny_target

ENGINE = "sglang-0.5.23"
IDS = torch.tensor([i for i in range(300) if i % 7])


def exported(root: Path, *, limited: bool = True, dtype: str = "bfloat16") -> Draft:
    target = tiny_target(root)
    config = json.loads((target.path / "config.json").read_text())
    size = len(IDS) if limited else None
    geometry = geometry_like_target(config, num_layers=2, steps=3, draft_vocab_size=size)
    network = EagleNetwork(geometry, draft_ids=IDS if limited else None)
    initialise_random(network, seed=1)
    fingerprint = fingerprint_of(target)
    contract = FeatureContract.for_target(
        fingerprint, layer_ids=(0, 2), hidden_size=geometry.hidden_size, precision="fp32"
    )
    manifest = Manifest(
        method="eagle",
        block_size=4,
        num_proposals=3,
        sample_from_anchor=True,
        layer_ids=(),
        feature_contract=contract,
        target_fingerprint=fingerprint,
    )
    drafter = root / "drafter"
    save_drafter(drafter, network, manifest)
    trained = load_file(str(drafter / "model.safetensors"))
    own, stated = (json.loads((drafter / f"{name}.json").read_text()) for name in ("config", "manifest"))
    layout = eagle.layout_config(own, stated, config, dtype=dtype)
    write_layout(root / "draft", layout, eagle.export_tensors(trained, dtype=dtype))
    return read_draft(root / "draft", trained=trained, geometry=own, manifest=stated, target=config, dtype=dtype)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("eagle")


@pytest.fixture(scope="module")
def sound(place: Path) -> Draft:
    return exported(place)


def with_config(**changes: Any) -> Callable[[Draft], Draft]:
    return lambda draft: replace(draft, config={**draft.config, **changes})


def with_tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Draft], Draft]:
    return lambda draft: replace(draft, tensors={**draft.tensors, name: change(draft.tensors[name])})


def without_tensor(name: str) -> Callable[[Draft], Draft]:
    return lambda draft: replace(draft, tensors={n: t for n, t in draft.tensors.items() if n != name})


def with_prefix(draft: Draft) -> Draft:
    return replace(draft, tensors={f"model.{name}": t for name, t in draft.tensors.items()})


FAULTS: dict[str, tuple[Callable[[Draft], Draft], str, str]] = {
    "unknown key": (with_config(layer_types=[]), "config-keys", "'layer_types'"),
    "other architecture": (with_config(architectures=["LlamaForCausalLM"]), "constants", "architectures"),
    "biases": (with_config(bias=True), "constants", "bias"),
    "tied head": (with_config(tie_word_embeddings=True), "constants", "tie_word_embeddings"),
    "number of layers": (with_config(num_hidden_layers=1), "sizes", "num_hidden_layers"),
    "other number of steps": (with_config(num_speculative_steps=4), "steps", "3 (manifest)"),
    "every token": (with_config(hot_vocab_size=300), "vocabulary", "257, as trained"),
    "offsets for ids": (with_tensor(TOKEN_MAP, lambda t: t - torch.arange(len(t))), "vocabulary", "increasing ids"),
    "ids off by one": (with_tensor(TOKEN_MAP, lambda t: t - 1), "values", TOKEN_MAP),
    "ids beyond the target's": (with_tensor(TOKEN_MAP, lambda t: t + 1), "vocabulary", "below 300"),
    "no token map": (without_tensor(TOKEN_MAP), "tensors", TOKEN_MAP),
    "context too short": (with_config(max_position_embeddings=64), "positions", ">= 4096"),
    "rope forms disagree": (with_config(rope_theta=3.0), "rope", "3.0"),
    "dtype null": (with_config(dtype=None), "dtype", "dtype"),
    "bias left out": (without_tensor("fc.bias"), "tensors", "fc.bias"),
    "names with a prefix": (with_prefix, "tensors", "fc.weight"),
    "an input norm of the first layer": (
        lambda d: replace(d, tensors={**d.tensors, "layers.0.input_layernorm.weight": torch.ones(64)}),
        "tensors", "layers.0.input_layernorm",
    ),
    "fc as narrow as the state": (with_tensor("fc.weight", lambda t: t[:, :64]), "shapes", "fc.weight"),
    "random fc": (with_tensor("fc.weight", torch.randn_like), "values", "fc.weight"),
}  # fmt: skip


def test_sound_export_has_no_finding(sound: Draft) -> None:
    report = lint(sound, engine=ENGINE)
    assert report.findings == ()
    assert report.tensors[TOKEN_MAP]["dtype"] == "int64"
    assert report.tensors["fc.weight"]["shape"] == [64, 128]
    assert "layers.0.input_layernorm.weight" not in report.tensors
    assert "layers.1.input_layernorm.weight" in report.tensors
    assert {check for _, check, _ in FAULTS.values()} == set(report.checks) - set(COMMON)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(sound: Draft, fault: str) -> None:
    plant, check, said = FAULTS[fault]
    findings = [str(f) for f in lint(plant(sound), engine=ENGINE).findings if f.check == check]
    assert any(said in f for f in findings), findings or "nothing found"


def test_the_token_map_is_what_a_server_reads(sound: Draft, place: Path) -> None:
    assert torch.load(place / "draft" / TOKEN_MAP, weights_only=True) == IDS.tolist()
    assert TOKEN_MAP not in load_file(str(place / "draft" / "model.safetensors"))
    (place / "broken").mkdir()
    save_file({}, str(place / "broken" / "model.safetensors"))
    (place / "broken" / TOKEN_MAP).write_text("[1, 2]")
    (place / "broken" / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="expected a list of token ids"):
        open_draft(place / "broken")


def test_the_export_reads_back_as_the_drafter(sound: Draft, place: Path) -> None:
    assert eagle.geometry_of(sound.config) == EagleGeometry.from_dict(sound.geometry).to_dict()
    network = load_network(export_as_drafter(place / "draft", place / "drafter", place / "back"))
    for name, value in network.state_dict().items():
        trained = sound.trained[name]
        wanted = trained.bfloat16().float() if trained.is_floating_point() else trained
        assert torch.equal(value, wanted), name


def test_every_token_needs_no_map(tmp_path: Path) -> None:
    draft = exported(tmp_path, limited=False, dtype="float32")
    assert lint(draft, engine=ENGINE).findings == ()
    assert draft.config["hot_vocab_size"] == draft.config["vocab_size"]
    assert TOKEN_MAP not in draft.tensors
    assert "--speculative-token-map" not in launch_flags({**draft.manifest, "geometry": draft.geometry})


def test_a_public_draft_is_read_as_the_engine_does(sound: Draft) -> None:
    """With copies of the target's ends, without our keys."""
    config = {k: v for k, v in sound.config.items() if k not in ("hot_vocab_size", "num_speculative_steps", "bias")}
    tensors = {**sound.tensors, "embed_tokens.weight": torch.ones(2, 2), "lm_head.weight": torch.ones(2, 2)}
    read, found = eagle.as_read(config, tensors)
    assert found.keys() == sound.tensors.keys()
    assert read["hot_vocab_size"] == 300


def test_flags_of_chains_trees_and_the_token_map(sound: Draft, tmp_path: Path) -> None:
    manifest = {**sound.manifest, "geometry": sound.geometry}
    flags = launch_flags(manifest, draft_path="/x/draft")
    assert {name: value for name, value in flags.items() if "speculative" in name} == {
        "--speculative-algorithm": "EAGLE",
        "--speculative-draft-model-path": "/x/draft",
        "--speculative-num-steps": "3",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "4",
        "--speculative-token-map": "/x/draft/hot_tokens.pt",
    }
    tree = launch_flags({**manifest, "tree": {"steps": 5, "topk": 4, "num_draft_tokens": 16}})
    sizes = [tree[f"--speculative-{name}"] for name in ("num-steps", "eagle-topk", "num-draft-tokens")]
    assert sizes == ["5", "4", "16"]
    with pytest.raises(ValueError, match="block_size"):
        launch_flags({**manifest, "block_size": 3})
    with pytest.raises(ValueError, match="SGLang drafts chains only with dflash"):
        launch_flags({"method": "dflash", "block_size": 6, "num_proposals": 5, "tree": {"steps": 2}})


def test_a_server_with_another_token_map_is_seen(sound: Draft, tmp_path: Path) -> None:
    for name, ids in (("ours", [1, 2]), ("copy", [1, 2]), ("other", [1, 3])):
        (tmp_path / name).mkdir()
        torch.save(ids, tmp_path / name / TOKEN_MAP)
    manifest = {**sound.manifest, "geometry": sound.geometry}
    expected = expected_settings(launch_flags(manifest, draft_path=str(tmp_path / "ours")), manifest)

    def same(found: object) -> bool:
        settings = {s.name: s for s in effective_settings({"speculative_token_map": found}, expected)}
        return settings["speculative_token_map"].same

    assert same(str(tmp_path / "copy" / TOKEN_MAP))
    assert not same(str(tmp_path / "other" / TOKEN_MAP))
    assert not same(None)
