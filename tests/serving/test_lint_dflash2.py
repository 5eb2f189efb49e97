"""Each planted fault of a DFlash 2 export is found, and a sound one has none; the way back is the drafter."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from specflow.drafters.dflash2 import method
from specflow.drafters.dflash2.geometry import DFlash2Geometry
from specflow.drafters.dflash2.network import DFlash2Network
from specflow.drafters.loading import load_network, read_manifest, save_drafter
from specflow.drafters.sizes import sizes_of_target
from specflow.serving.draft import Draft, read_draft
from specflow.serving.layouts import dflash2
from specflow.serving.layouts.common import write_layout
from specflow.serving.lint import lint
from tests.serving.helpers import BLOCK, LAYERS, MASK_ID, random_drafter
from tests.serving.test_lint import with_config, with_method, with_tensor, without_tensor
from tests.stages.pipeline_helpers import tiny_target

ENGINE = "sglang-0.5.23"
EXTRAS = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 4}


def exported(root: Path, **changes: Any) -> Draft:
    target = tiny_target(root)
    manifest = replace(read_manifest(random_drafter(root / "dflash", target).path), method="dflash2")
    config = json.loads((target.path / "config.json").read_text())
    geometry = DFlash2Geometry(
        **sizes_of_target(config), num_layers=2, block_size=BLOCK, layer_ids=LAYERS, mask_token_id=MASK_ID,
        **{**EXTRAS, **changes},
    )  # fmt: skip
    torch.manual_seed(1)
    network = DFlash2Network(geometry)
    method.become_fresh(network, seed=0, std=0.5)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    save_drafter(root / "drafter", network, manifest)
    own = json.loads((root / "drafter" / "config.json").read_text())
    trained = load_file(str(root / "drafter" / "model.safetensors"))
    layout = dflash2.layout_config(own, manifest.to_dict(), config, dtype="bfloat16")
    write_layout(root / "draft", layout, dflash2.export_tensors(trained, dtype="bfloat16"))
    return read_draft(
        root / "draft", trained=trained, geometry=own, manifest=manifest.to_dict(), target=config, dtype="bfloat16"
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lint2")


@pytest.fixture(scope="module")
def sound(root: Path) -> Draft:
    return exported(root)


def test_sound_export_has_no_finding(sound: Draft) -> None:
    report = lint(sound, engine=ENGINE)
    assert report.findings == ()
    assert len(report.tensors) == 3 + 2 * (11 + 4) + 3
    assert sound.config["architectures"] == ["DFlash2DraftModel"]
    shapes = {name: tuple(t["shape"]) for name, t in report.tensors.items()}
    vocab, hidden = sound.target["vocab_size"], sound.target["hidden_size"]
    assert shapes["candidate_selector.successor_codebook"] == (vocab, 8)
    assert shapes["layers.1.mlp_conv.kernel_projection.weight"] == (2 * 2 * hidden // 16, hidden)


def both_ends(**changes: Any) -> Callable[[Draft], Draft]:
    """In the config and the drafter alike, so that only the rule itself can object."""
    return lambda draft: replace(with_method(**changes)(draft), geometry={**draft.geometry, **changes})


def fewer(tensor: Tensor) -> Tensor:
    return tensor[:-7]


FAULTS = {
    "missing predecessors": (without_tensor("candidate_selector.predecessor_codebook"), "tensors", "predecessor"),
    "missing successors": (without_tensor("candidate_selector.successor_codebook"), "tensors", "successor_codebook"),
    "missing projection": (
        without_tensor("candidate_selector.hidden_projection.weight"), "tensors", "hidden_projection"
    ),
    "missing convolution": (without_tensor("layers.0.attention_conv.base_kernel"), "tensors", "attention_conv.base"),
    "missing kernel projection": (
        without_tensor("layers.1.mlp_conv.kernel_projection.weight"), "tensors", "layers.1.mlp_conv"
    ),
    "a zeroed codebook": (
        with_tensor("candidate_selector.successor_codebook", torch.zeros_like), "values", "successor_codebook"
    ),
    "codebook of fewer tokens": (
        with_tensor("candidate_selector.successor_codebook", fewer), "codebooks", "one per token of the target"
    ),
    "codebook turned": (
        with_tensor("candidate_selector.predecessor_codebook", lambda t: t.T.contiguous()), "shapes", "predecessor"
    ),
    "taps turned": (
        with_tensor("layers.0.mlp_conv.base_kernel", lambda t: t.transpose(0, 2).contiguous()), "shapes", "base_kernel"
    ),
    "no power of two": (both_ends(selector_top_k=6), "codebooks", "a power of two"),
    "another number of candidates": (with_method(selector_top_k=8), "extras", "selector_top_k"),
    "convolution switched off": (with_method(conv_kernel_size=0, conv_group_size=0), "extras", "conv_kernel_size"),
    "a key at the top": (with_config(selector_rank=8), "config-keys", "'selector_rank'"),
    "multiplier lost": (with_method(output_multiplier=2.0), "extras", "output_multiplier"),
    "served without its selector": (with_config(architectures=["DFlashDraftModel"]), "constants", "architectures"),
    "causal block": (with_config(is_causal=True), "visibility", "is_causal"),
}  # fmt: skip
FAULTS["cap lost"] = (
    lambda draft: replace(draft, geometry={**draft.geometry, "final_logit_softcapping": 30.0}),
    "extras",
    "final_logit_softcapping",
)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(sound: Draft, fault: str) -> None:
    plant, check, said = FAULTS[fault]
    findings = [str(f) for f in lint(plant(sound), engine=ENGINE).findings if f.check == check]
    assert any(said in f for f in findings), findings or "nothing found"


def test_the_way_back_is_the_drafter(sound: Draft, root: Path) -> None:
    assert dflash2.geometry_of(sound.config) == sound.geometry
    assert dflash2.layout_shapes(sound.config) == {n: tuple(t.shape) for n, t in sound.trained.items()}
    network = load_network(root / "drafter")
    network.load_state_dict(dflash2.drafter_tensors(sound.tensors))
    assert dflash2.launch_flags(sound.manifest)["--speculative-algorithm"] == "DFLASH"


def test_without_a_selector_it_is_a_dflash_draft_model(tmp_path: Path) -> None:
    draft = exported(tmp_path, selector_rank=0, selector_top_k=0)
    assert lint(draft, engine=ENGINE).findings == ()
    assert draft.config["architectures"] == ["DFlashDraftModel"]
    assert not any("candidate_selector" in name for name in draft.tensors)
    assert dflash2.geometry_of(draft.config) == draft.geometry


WINDOWS = {
    "all layers": ({"sliding_window": 8, "sliding_layers": (0, 1)}, None, ["sliding_attention"] * 2),
    "one layer": ({"sliding_window": 8, "sliding_layers": (1,)}, None, ["full_attention", "sliding_attention"]),
    "bidirectional": ({"sliding_window": 8, "sliding_layers": (0,), "causal_block": False}, False, None),
    "causal": ({"causal_block": True}, True, ["full_attention"] * 2),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_and_direction_survive_the_layout_and_transformers(name: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    changes, causal, types = WINDOWS[name]
    draft = exported(tmp_path, **changes)
    assert lint(draft, engine=ENGINE).findings == ()
    assert draft.config["is_causal"] is causal
    if types:
        assert draft.config["layer_types"] == types
    assert dflash2.geometry_of(draft.config) == draft.geometry
    read = AutoConfig.from_pretrained(tmp_path / "draft")
    for key, value in dflash2.read_back(draft.config).items():
        assert getattr(read, key) == value, key
