"""A drafter born from its target computes what the target's last layers compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.drafters.dflash.geometry import geometry_like_target
from specflow.drafters.dflash.initialise import initialise_from_target, initialise_random
from specflow.drafters.dflash.network import DFlashNetwork
from specflow.drafters.target_weights import TargetWeights
from specflow.targets.tiny import make_tiny_target

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_target(tmp_path_factory.mktemp("target"), 5)


@pytest.fixture(scope="module")
def model(tiny: Path) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()


def born(tiny: Path, model: Any, layers: int) -> tuple[DFlashNetwork, torch.Tensor, str | None]:
    """A drafter of ``layers`` layers that reads the outputs of layers 0 and 2, and those features."""
    ids = torch.randint(0, 290, (1, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
    features = torch.stack((states[1][0], states[3][0]), dim=1)
    weights = TargetWeights(tiny)
    made = geometry_like_target(weights.config, num_layers=layers, block_size=4, layer_ids=(0, 2), mask_token_id=7)
    net = DFlashNetwork(made)
    return net, features, initialise_from_target(net, weights, features, seed=0)


@pytest.mark.parametrize("layers", [1, 2])
def test_context_and_block_have_the_target_layers_keys_and_values(tiny: Path, model: Any, layers: int) -> None:
    net, features, reason = born(tiny, model, layers)
    assert reason is None
    with torch.no_grad():
        context = net.hidden_norm(net.fc(features.flatten(1)))
        for ours, theirs in zip(net.layers, model.model.layers[-layers:], strict=True):
            normed = theirs.input_layernorm(features[:, 1])
            block = ours.input_layernorm(features[:, 1])
            for name in ("k_proj", "v_proj", "q_proj"):
                expected = getattr(theirs.self_attn, name)(normed)
                for found in (context, block):
                    torch.testing.assert_close(getattr(ours.self_attn, name)(found), expected, atol=1e-4, rtol=1e-4)
            x = torch.randn(5, 64)
            ours_mlp = ours.mlp(ours.post_attention_layernorm(x))
            torch.testing.assert_close(ours_mlp, theirs.mlp(theirs.post_attention_layernorm(x)), atol=1e-4, rtol=1e-4)
        assert torch.equal(net.norm.weight, model.model.norm.weight)


def test_head_norms_keep_the_measured_size(tiny: Path, model: Any) -> None:
    net, features, _ = born(tiny, model, 1)
    theirs = model.model.layers[-1]
    with torch.no_grad():
        normed = theirs.input_layernorm(features[:, 1])
        for name, norm in (("q_proj", net.layers[0].self_attn.q_norm), ("k_proj", net.layers[0].self_attn.k_norm)):
            heads = getattr(theirs.self_attn, name)(normed).unflatten(-1, (-1, 16))
            measured = heads.pow(2).mean(-1).sqrt().mean()
            torch.testing.assert_close(norm(heads).pow(2).mean(-1).sqrt().mean(), measured, rtol=1e-3, atol=1e-3)


def test_other_model_types_start_at_random_and_say_why(tiny: Path, model: Any) -> None:
    net, features, _ = born(tiny, model, 1)
    weights = TargetWeights(tiny)
    weights.config["model_type"] = "strange"
    reason = initialise_from_target(net, weights, features, seed=3)
    assert reason is not None
    assert "'strange' is not one of llama" in reason
    again = DFlashNetwork(net.geometry)
    torch.rand(5)
    initialise_random(again, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))
    assert float(again.fc.weight.detach().std()) == pytest.approx(0.02, rel=0.05)
    deep = DFlashNetwork(
        geometry_like_target(weights.config, num_layers=5, block_size=4, layer_ids=(0, 2), mask_token_id=7)
    )
    assert "the target has 4" in str(initialise_from_target(deep, TargetWeights(tiny), features, seed=0))


def test_a_target_with_biases_starts_at_random(tiny: Path, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    net, features, _ = born(tiny, model, 1)
    weights = TargetWeights(tiny)
    has = weights.has
    monkeypatch.setattr(TargetWeights, "has", lambda self, name: name.endswith("k_proj.bias") or has(name))
    reason = initialise_from_target(net, weights, features, seed=3)
    assert reason == "the target's layers have 'self_attn.k_proj.bias', draft layers have no biases"
    again = DFlashNetwork(net.geometry)
    initialise_random(again, seed=3)
    assert torch.equal(net.fc.weight, again.fc.weight)


def test_target_weights_read_single_tensors(tiny: Path, model: Any) -> None:
    weights = TargetWeights(tiny)
    assert torch.equal(weights.embedding(), model.model.embed_tokens.weight)
    assert torch.equal(weights.head(), model.lm_head.weight)
    assert weights.embedding_scale == 1.0
    with pytest.raises(KeyError, match="has no tensor 'nothing'"):
        weights.get("nothing")
    empty = tiny.parent / "empty"
    empty.mkdir()
    (empty / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        TargetWeights(empty)


@pytest.mark.parametrize("layers", [1, 2])
def test_eagle_reads_the_normed_state_as_the_target_layer_reads_its_own(tiny: Path, model: Any, layers: int) -> None:
    from specflow.drafters.eagle import initialise
    from specflow.drafters.eagle.geometry import geometry_like_target as eagle_like_target
    from specflow.drafters.eagle.network import EagleNetwork

    weights = TargetWeights(tiny)
    net = EagleNetwork(eagle_like_target(weights.config, num_layers=layers, steps=3))
    assert initialise.initialise_from_target(net, weights, seed=0) is None
    stream = torch.randn(7, 64, generator=torch.Generator().manual_seed(2)) * 3.0
    with torch.no_grad():
        state = model.model.norm(stream)  # what EAGLE has of the residual stream
        joined = net.fc(torch.cat((torch.randn(7, 64), state), dim=1))
        torch.testing.assert_close(joined, state)
        for index, (ours, theirs) in enumerate(zip(net.all_layers(), model.model.layers[-layers:], strict=True)):
            normed = theirs.input_layernorm(stream)
            found = ours.normed(state if index == 0 else stream)
            for name in ("k_proj", "v_proj", "q_proj"):
                expected = getattr(theirs.self_attn, name)(normed)
                torch.testing.assert_close(getattr(ours.self_attn, name)(found), expected, atol=1e-4, rtol=1e-4)
            assert not ours.self_attn.o_proj.weight.any()
            assert torch.equal(ours.mlp.up_proj.weight, theirs.mlp.up_proj.weight)
            assert torch.equal(ours.after_attention(state, torch.randn(7, ours.self_attn.o_proj.in_features)), state)
