"""Start a drafter from its target: what the target's last layers read of a hidden state is a good first guess."""

from __future__ import annotations

import torch

from specflow.drafters.dflash.initialise import initialise_random
from specflow.drafters.eagle.network import EagleNetwork, Layer
from specflow.drafters.target_layers import why_not_copied
from specflow.drafters.target_weights import TargetWeights

SMALLEST = 1e-3
"""Of a norm's scale that is divided by."""


def initialise_anew(network: EagleNetwork, *, seed: int) -> None:
    """Random matrices, a bias of zero."""
    initialise_random(network, seed=seed)
    with torch.no_grad():
        network.fc.bias.zero_()


def initialise_from_target(network: EagleNetwork, target: TargetWeights, *, seed: int) -> str | None:
    """Copy what the target's last layers read; returns why not, if that is impossible.

    ``fc`` passes the hidden state through. It is normalised already, with the final norm's scale instead of the
    layer's own, and the first draft layer has no norm: its query, key and value absorb the ratio. What layers add to
    their residual stream has the scale of the target's stream, which the normalised state has lost: copied, it would
    drown the state, so it begins at zero and the next state is guessed to be this one.
    """
    initialise_anew(network, seed=seed)
    reason = why_not_copied(network.geometry, target)
    if reason:
        return reason
    g, last = network.geometry, int(target.config["num_hidden_layers"])
    final = target.get("model.norm.weight").float()
    with torch.no_grad():
        network.fc.weight.zero_()
        network.fc.weight[:, g.hidden_size :].copy_(torch.eye(g.hidden_size))
        for layer, index in zip(network.all_layers(), range(last - g.num_layers, last), strict=True):
            source = f"model.layers.{index}."
            norm = target.get(source + "input_layernorm.weight").float()
            safe = torch.where(final.abs() < SMALLEST, SMALLEST, final)
            _copy_layer(layer, target, source, ratio=norm / safe if layer.input_layernorm is None else None)
            if layer.input_layernorm is not None:
                layer.input_layernorm.weight.copy_(norm)
    return None


def _copy_layer(layer: Layer, target: TargetWeights, source: str, *, ratio: torch.Tensor | None) -> None:
    layer.post_attention_layernorm.weight.copy_(target.get(source + "post_attention_layernorm.weight").float())
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
        weight = target.get(f"{source}{name}.weight").float()
        layer.get_submodule(name).get_parameter("weight").copy_(weight if ratio is None else weight * ratio)
    layer.self_attn.o_proj.weight.zero_()
    layer.mlp.down_proj.weight.zero_()
    for name in ("mlp.gate_proj", "mlp.up_proj"):
        layer.get_submodule(name).get_parameter("weight").copy_(target.get(f"{source}{name}.weight").float())
