"""Whether a target's last layers can be copied into draft layers that have no norms of query and key, and no biases."""

from __future__ import annotations

from typing import Protocol

from specflow.drafters.dflash.initialise import SUPPORTED
from specflow.drafters.layers import Heads
from specflow.drafters.target_weights import TargetWeights


class LayerSizes(Heads, Protocol):
    @property
    def num_layers(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...


def why_not_copied(sizes: LayerSizes, target: TargetWeights) -> str | None:
    """Why the target's last layers are not such as the draft's; none: they are."""
    g, config = sizes, target.config
    if config.get("model_type") not in SUPPORTED:
        return f"model type {config.get('model_type')!r} is not one of {', '.join(SUPPORTED)}"
    if g.num_layers > int(config["num_hidden_layers"]):
        return f"{g.num_layers} draft layers, but the target has {config['num_hidden_layers']}"
    source = f"model.layers.{int(config['num_hidden_layers']) - 1}."
    for name in ("q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias", "q_norm.weight", "k_norm.weight"):
        if target.has(f"{source}self_attn.{name}"):
            return f"the target's layers have {name!r}, draft layers have none"
    kv = g.num_kv_heads * g.head_dim
    heads = g.num_heads * g.head_dim
    shapes = {
        "self_attn.q_proj": (heads, g.hidden_size),
        "self_attn.k_proj": (kv, g.hidden_size),
        "self_attn.v_proj": (kv, g.hidden_size),
        "self_attn.o_proj": (g.hidden_size, heads),
        "mlp.gate_proj": (g.intermediate_size, g.hidden_size),
    }
    for name, shape in shapes.items():
        full = f"{source}{name}.weight"
        if not target.has(full):
            return f"the target has no tensor {full!r}"
        if tuple(target.get(full).shape) != shape:
            return f"{full!r} is {tuple(target.get(full).shape)} in the target, {shape} in the drafter"
    return None
