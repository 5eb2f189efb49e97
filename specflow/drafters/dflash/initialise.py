"""Start a drafter from its target: what the target's last layers do to a hidden state is a good first guess."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specflow.drafters.dflash.network import DFlashNetwork, Layer
from specflow.drafters.target_weights import TargetWeights

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")
"""Model types whose layers are RMSNorm, gated SiLU MLP and full rotary attention under these names."""


def initialise_random(network: nn.Module, *, seed: int, std: float = 0.02) -> None:
    """Matrices N(0, std), norm scales 1; the same seed gives the same weights on every platform."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)


def initialise_from_target(
    network: DFlashNetwork, target: TargetWeights, sample_TKH: Tensor, *, seed: int
) -> str | None:
    """Copy the target's last layers into the draft layers; returns why not, if that is impossible.

    ``fc`` passes the last captured feature through, so the context is that feature, normalised. Draft layers share
    one context norm while target layers have their own: each layer's q, k, v absorb the ratio, and context and
    block then give exactly the target layer's keys and values. The per-head norms of query and key, which most
    targets lack, start at the rms their input has on ``sample_TKH`` (rows of stored features).
    """
    reason = _unsuitable(network, target)
    if reason:
        initialise_random(network, seed=seed)
        return reason
    g = network.geometry
    last = int(target.config["num_hidden_layers"])
    sources = [f"model.layers.{i}." for i in range(last - g.num_layers, last)]
    layers = [layer for layer in network.layers if isinstance(layer, Layer)]
    norms = [target.get(s + "input_layernorm.weight").float() for s in sources]
    shared = torch.stack(norms).abs().mean(dim=0).clamp_min(1e-3)
    with torch.no_grad():
        network.fc.weight.zero_()
        network.fc.weight[:, -g.hidden_size :].copy_(torch.eye(g.hidden_size))
        network.hidden_norm.weight.copy_(shared)
        network.norm.weight.copy_(target.get("model.norm.weight").float())
        context_TH = network.hidden_norm(network.fc(sample_TKH.float().flatten(1)))
        for layer, source, norm in zip(layers, sources, norms, strict=True):
            _copy_layer(layer, target, source, ratio=norm / shared, shared=shared)
            _copy_head_norms(layer, target, source, context_TH)
    return None


def _copy_layer(layer: Layer, target: TargetWeights, source: str, *, ratio: Tensor, shared: Tensor) -> None:
    layer.input_layernorm.weight.copy_(shared)
    layer.post_attention_layernorm.weight.copy_(target.get(source + "post_attention_layernorm.weight").float())
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = target.get(f"{source}self_attn.{name}.weight").float() * ratio
        layer.get_submodule(f"self_attn.{name}").get_parameter("weight").copy_(weight)
    for name in ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
        layer.get_submodule(name).get_parameter("weight").copy_(target.get(f"{source}{name}.weight").float())


def _copy_head_norms(layer: Layer, target: TargetWeights, source: str, context_TH: Tensor) -> None:
    attention = layer.self_attn
    for name, projection, norm in (
        ("q_norm", attention.q_proj, attention.q_norm),
        ("k_norm", attention.k_proj, attention.k_norm),
    ):
        if target.has(f"{source}self_attn.{name}.weight"):
            norm.weight.copy_(target.get(f"{source}self_attn.{name}.weight").float())
        else:
            heads = projection(context_TH).unflatten(-1, (-1, attention.size))
            norm.weight.fill_(float(heads.pow(2).mean(dim=-1).sqrt().mean()))


def _unsuitable(network: DFlashNetwork, target: TargetWeights) -> str | None:
    g, config = network.geometry, target.config
    kind = config.get("model_type")
    if kind not in SUPPORTED:
        return f"model type {kind!r} is not one of {', '.join(SUPPORTED)}"
    if g.num_layers > int(config["num_hidden_layers"]):
        return f"{g.num_layers} draft layers, but the target has {config['num_hidden_layers']}"
    last = int(config["num_hidden_layers"]) - 1
    for name in ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias", "self_attn.o_proj.bias"):
        if target.has(f"model.layers.{last}.{name}"):
            return f"the target's layers have {name!r}, draft layers have no biases"
    for name, parameter in network.layers[-1].named_parameters():
        full = f"model.layers.{last}.{name}"
        if not target.has(full):
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                continue
            return f"the target has no tensor {full!r}"
        if target.get(full).shape != parameter.shape:
            return f"{full!r} is {tuple(target.get(full).shape)} in the target, {tuple(parameter.shape)} in the drafter"
    return None
