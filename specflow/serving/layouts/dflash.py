"""DFlash drafter -> the directory that SGLang 0.5.23 loads as ``DFlashDraftModel``.

``model_type`` is ``qwen3``: the draft layers are Qwen3 decoder layers (per-head q/k norms, no attention bias), so
transformers reads the file without remote code. Three defaults of that config class would change the drafter, hence
these keys are always written: ``layer_types`` (left out, transformers fills it in), ``is_causal`` (``false``: the block
is bidirectional; ``null``: only in layers that do not slide), ``sliding_window`` (the row's own position included, as
ours) with ``use_sliding_window``. The rotary base is written in both forms, ``rope_theta``/``rope_scaling`` and
``rope_parameters``, because engines and transformers versions read one or the other.

Method keys stand both in ``dflash_config`` (looked up first) and at the top level. ``block_size`` is the verify
window, anchor included. ``target_layer_ids`` are 0-based ids of the layers whose *output* is read, as in our manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specflow.drafters.causality import plain_causality
from specflow.serving import lint_rules
from specflow.serving.layouts import dflash_reading, dflash_rules
from specflow.serving.layouts.common import backbone_keys, cast_tensors, require_layer_convention, sizes_of

if TYPE_CHECKING:
    from torch import Tensor

ARCHITECTURE = "DFlashDraftModel"
ARCHITECTURES = (ARCHITECTURE,)
CONFIG_KEYS = frozenset(
    {
        "architectures", "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "intermediate_size", "hidden_act", "rms_norm_eps", "attention_bias",
        "rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "layer_types", "is_causal",
        "use_sliding_window", "sliding_window", "vocab_size", "tie_word_embeddings", "dtype", "torch_dtype",
        "block_size", "num_target_layers", "dflash_config",
    }
)  # fmt: skip
METHOD_KEYS = frozenset({"mask_token", "mask_token_id", "target_layer_ids", "num_target_layers", "block_size"})
OPTIONAL_METHOD_KEYS = frozenset({"mask_token"})


def layout_config(
    geometry: Mapping[str, Any], manifest: Mapping[str, Any], target: Mapping[str, Any], *, dtype: str
) -> dict[str, Any]:
    """``config.json`` of the draft.

    ``geometry``: the drafter's own config; ``target``: the target's Hugging Face config; ``dtype``: torch name.
    Raises ``ValueError`` where the manifest uses another layer convention than the engine.
    """
    require_layer_convention(manifest)
    block = int(manifest["block_size"])
    method: dict[str, Any] = {
        "mask_token_id": int(manifest["mask_token_id"]),
        "target_layer_ids": [int(i) for i in manifest["layer_ids"]],
        "num_target_layers": int(target["num_hidden_layers"]),
        "block_size": block,
    }
    if manifest.get("mask_token"):
        method["mask_token"] = manifest["mask_token"]
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        **backbone_keys(geometry, target, dtype=dtype),
        **visibility_keys(geometry),
        "block_size": block,
        "num_target_layers": method["num_target_layers"],
        "dflash_config": method,
    }


def visibility_keys(geometry: Mapping[str, Any]) -> dict[str, Any]:
    """What a row of the block sees, as the engine reads it; drafters without these settings see everything."""
    layers, sliding = int(geometry["num_layers"]), set(geometry.get("sliding_layers") or ())
    causal = geometry.get("causal_block")
    return {
        "layer_types": ["sliding_attention" if i in sliding else "full_attention" for i in range(layers)],
        "is_causal": False if causal is None and not sliding else causal,
        "use_sliding_window": bool(sliding),
        "sliding_window": geometry.get("sliding_window") if sliding else None,
    }


def layout_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Exact names and shapes of the checkpoint that ``config`` describes (linear weights ``[out, in]``)."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    captured = len(config["dflash_config"]["target_layer_ids"])
    layer = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    return {
        "fc.weight": (hidden, captured * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        **{f"layers.{i}.{n}": shape for i in range(config["num_hidden_layers"]) for n, shape in layer.items()},
    }


def geometry_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The drafter's own config as an engine understands ``config``: the inverse of ``layout_config``."""
    method = config["dflash_config"]
    return {
        **sizes_of(config),
        "block_size": method["block_size"],
        "layer_ids": list(method["target_layer_ids"]),
        "mask_token_id": method["mask_token_id"],
        **_visibility_of(config),
    }


def _visibility_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of ``visibility_keys``; a config without ``layer_types`` has full attention in both directions."""
    layers = int(config["num_hidden_layers"])
    types = config.get("layer_types") or ["full_attention"] * layers
    sliding = [i for i, kind in enumerate(types) if kind == "sliding_attention"]
    causal = config.get("is_causal") if config.get("layer_types") else None
    return {
        "sliding_window": config.get("sliding_window") if sliding else None,
        "sliding_layers": sliding,
        "causal_block": plain_causality(causal, sliding=len(sliding), layers=layers),
    }


def export_tensors(trained: Mapping[str, Tensor], *, dtype: str) -> dict[str, Tensor]:
    """The names are the network's own."""
    return cast_tensors(trained, dtype=dtype)


def drafter_tensors(exported: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.float() for name, tensor in exported.items()}


def as_read(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return dflash_reading.config_as_read(config), dflash_reading.tensors_as_read(tensors)


def launch_flags(manifest: Mapping[str, Any]) -> dict[str, str]:
    """For DFLASH ``--speculative-num-draft-tokens`` is the verify window, anchor included: our ``block_size``."""
    block, proposals = int(manifest["block_size"]), int(manifest["num_proposals"])
    if proposals != block - 1:
        raise ValueError(f"dflash: expected num_proposals = block_size - 1 = {block - 1}, found {proposals}")
    return {"--speculative-algorithm": "DFLASH", "--speculative-num-draft-tokens": str(block)}


def read_back(config: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("is_causal", "layer_types", "sliding_window", "dflash_config", "block_size")
    return {key: config[key] for key in keys}


def constants(config: Mapping[str, Any]) -> dict[str, Any]:
    """What every export has, and an engine would not miss."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
    }


RULES = {
    "config-keys": lint_rules.config_keys(CONFIG_KEYS, dflash_config=(METHOD_KEYS, OPTIONAL_METHOD_KEYS)),
    "constants": lint_rules.constants(constants),
    "sizes": lint_rules.sizes,
    "layer-ids": lint_rules.layer_ids("dflash_config", "target_layer_ids"),
    "block": dflash_rules.block,
    "visibility": dflash_rules.visibility(visibility_keys),
    "mask-token": dflash_rules.mask_token,
    **lint_rules.of_every_method(layout_shapes, export_tensors),
}
