"""Warm start: what is taken, what is new, what is left, and everything that does not fit at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specflow.drafters.dflash.network import DFlashNetwork
from specflow.training.init_from import CannotStart, warm_start
from tests.drafters.helpers import network

torch.set_num_threads(1)


def write(directory: Path, source: DFlashNetwork, **changes: Any) -> Path:
    """A drafter of ours; ``changes`` of its settings."""
    directory.mkdir(parents=True)
    save_file(dict(source.state_dict()), directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({**source.geometry.to_dict(), **changes}))
    return directory


def test_equal_networks_are_taken_whole(tmp_path: Path) -> None:
    there, here = network(1), network(2)
    found = warm_start(here, write(tmp_path / "ours", there), config=here.geometry.to_dict())
    assert all(torch.equal(p, there.get_parameter(name)) for name, p in here.named_parameters())
    assert len(found.taken) == len(list(here.parameters()))
    assert (found.new, found.left, found.different) == ({}, {}, {})
    assert found.to_dict()["taken_parameters"] == sum(p.numel() for p in here.parameters())


def test_new_left_and_different_are_told(tmp_path: Path) -> None:
    there, here = network(1, num_layers=3), network(2, num_layers=2, layer_ids=[0, 1, 3])
    weights = {k: v for k, v in there.state_dict().items() if not k.startswith("layers.1.mlp")}
    directory = write(tmp_path / "ours", there)
    save_file({**weights, "markov.weight": torch.zeros(4, 5)}, directory / "model.safetensors")
    before = here.layers[1].mlp.up_proj.weight.detach().clone()  # type: ignore[union-attr, operator]
    found = warm_start(here, tmp_path / "ours", config=here.geometry.to_dict())
    assert set(found.new) == {f"layers.1.mlp.{n}_proj.weight" for n in ("gate", "up", "down")}
    assert set(found.left) == {"markov.weight", *(k for k in there.state_dict() if k.startswith("layers.2."))}
    assert found.left["markov.weight"] == (4, 5)
    assert torch.equal(here.layers[1].mlp.up_proj.weight, before)  # type: ignore[union-attr]
    assert torch.equal(here.fc.weight, there.fc.weight)
    assert found.different == {"layer_ids": ([0, 2, 3], [0, 1, 3]), "num_layers": (3, 2)}
    text = found.describe()
    for part in (
        "new: layers.1.mlp",
        "left: layers.2.",
        "and 8 more",
        "layer_ids was [0, 2, 3] there and is [0, 1, 3] here",
    ):
        assert part in text
    json.dumps(found.to_dict(), allow_nan=False)


def test_the_public_layout_in_shards_and_half_precision(tmp_path: Path) -> None:
    from specflow.serving.layouts.common import write_layout
    from specflow.serving.layouts.dflash import layout_config

    there, here = network(1), network(2)
    target = {"num_hidden_layers": 6, "max_position_embeddings": 512, "vocab_size": 97}
    manifest = {
        "layer_convention": "output_of_layer", "block_size": 5, "mask_token_id": 95, "layer_ids": [0, 2, 3],
        "mask_token": "<m>",
    }  # fmt: skip
    config = layout_config(there.geometry.to_dict(), manifest, target, dtype="bfloat16")
    halved = {f"model.{k}": v.bfloat16() for k, v in there.state_dict().items()}
    write_layout(tmp_path / "public", config, halved)
    names = sorted(halved)
    save_file({n: halved[n] for n in names[:5]}, tmp_path / "public" / "model-1-of-2.safetensors")
    save_file({n: halved[n] for n in names[5:]}, tmp_path / "public" / "model-2-of-2.safetensors")
    (tmp_path / "public" / "model.safetensors").unlink()
    found = warm_start(here, tmp_path / "public", config=here.geometry.to_dict())
    assert (found.new, found.left) == ({}, {})
    assert found.different == {"mask_token_id": (95, 96)}
    for name, parameter in here.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, there.get_parameter(name).bfloat16().float())


def test_everything_that_does_not_fit_is_told_at_once_and_nothing_is_changed(tmp_path: Path) -> None:
    there, here = network(1, intermediate_size=40), network(2)
    directory = write(tmp_path / "ours", there)
    weights = load_file(directory / "model.safetensors")
    weights["norm.weight"][3] = torch.nan
    save_file(weights, directory / "model.safetensors")
    before = {name: p.detach().clone() for name, p in here.named_parameters()}
    with pytest.raises(CannotStart) as caught:
        warm_start(here, directory, config=here.geometry.to_dict())
    message = str(caught.value)
    for layer in (0, 1):
        assert f"layers.{layer}.mlp.gate_proj.weight: (40, 32) there, (48, 32) here" in message
        assert f"layers.{layer}.mlp.down_proj.weight: (32, 40) there, (32, 48) here" in message
    assert "norm.weight: values that are not finite" in message
    assert "7 tensors do not fit" in message
    assert all(torch.equal(p, before[name]) for name, p in here.named_parameters())


def test_foreign_weights_are_refused(tmp_path: Path) -> None:
    directory = write(tmp_path / "other", network(1))
    save_file({"encoder.weight": torch.zeros(3)}, directory / "model.safetensors")
    here = network(2)
    with pytest.raises(CannotStart, match=r"no tensor of the drafter is there; it has encoder.weight \[3\]"):
        warm_start(here, directory, config=here.geometry.to_dict())
