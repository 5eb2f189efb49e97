"""Start a drafter from its target: the target's last layers, norm and head are a good first guess."""

from __future__ import annotations

import torch

from specflow.drafters.dflash.initialise import initialise_random
from specflow.drafters.eagle3.network import Eagle3Network, Layer
from specflow.drafters.target_layers import why_not_copied
from specflow.drafters.target_weights import TargetWeights


def initialise_from_target(network: Eagle3Network, target: TargetWeights, *, seed: int) -> str | None:
    """Copy the target's last layers into the draft layers; returns why not, if that is impossible.

    ``fc`` passes the last captured feature through, so the first state is that feature and the drafter's layers do to
    it what the target's last ones do. What reads the token's embedding, which no layer of the target has, is random.
    """
    initialise_random(network, seed=seed)
    reason = why_not_copied(network.geometry, target)
    if reason:
        return reason
    g, last = network.geometry, int(target.config["num_hidden_layers"])
    with torch.no_grad():
        network.fc.weight.zero_()
        network.fc.weight[:, -g.hidden_size :].copy_(torch.eye(g.hidden_size))
        network.norm.weight.copy_(target.get("model.norm.weight").float())
        for layer, index in zip(network.all_layers(), range(last - g.num_layers, last), strict=True):
            _copy_layer(layer, target, f"model.layers.{index}.")
        ids_D = network.draft_ids_D
        if ids_D is not None:
            network.lm_head.weight.copy_(target.head()[ids_D].float())
    return None


def _copy_layer(layer: Layer, target: TargetWeights, source: str) -> None:
    layer.hidden_norm.weight.copy_(target.get(source + "input_layernorm.weight").float())
    layer.post_attention_layernorm.weight.copy_(target.get(source + "post_attention_layernorm.weight").float())
    for name in ("q_proj", "k_proj", "v_proj"):
        theirs = target.get(f"{source}self_attn.{name}.weight").float()
        # The first layer's columns of the embedding come first and stay as they are.
        layer.get_submodule(f"self_attn.{name}").get_parameter("weight")[:, -theirs.shape[1] :].copy_(theirs)
    for name in ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
        layer.get_submodule(name).get_parameter("weight").copy_(target.get(f"{source}{name}.weight").float())
