"""EAGLE-3 drafter -> the directory that SGLang 0.5.23 loads as ``LlamaForCausalLMEagle3``, whatever the target.

``eagle_config.eagle_aux_hidden_state_layer_ids`` alone selects the captured layers. Explicit ids there mean the
*output* of a layer, as in our manifest: the engine adds the one that its own capture points (layer inputs) need. Some
targets (``deepseek_v2`` and its kin) do so only if the first id is 1 and take other lists as capture points; with them
the engine would read other layers than a drafter of another first layer was trained on, so that is refused.

``draft_vocab_size`` is always written: a number with ``lm_head`` and ``d2t``, or null, where embedding and head are the
target's. ``d2t`` holds offsets: token of the target = token of the draft + ``d2t``. The embedding is the target's and
not exported. Names are the network's own: ``midlayer`` is the first layer. Keys that would change the drafter if they
were there (``bias``, ``norm_before_fc``, ``target_hidden_size``) are written with what the drafter is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specflow.serving import lint_rules
from specflow.serving.layouts import eagle3_rules
from specflow.serving.layouts.common import backbone_keys, cast_tensors, require_layer_convention, sizes_of
from specflow.serving.layouts.state_drafters import layer_shapes, round_flags, steps

if TYPE_CHECKING:
    from torch import Tensor

ARCHITECTURE = "LlamaForCausalLMEagle3"
ARCHITECTURES = (ARCHITECTURE,)
RENAMED = {
    "layers.0.": "midlayer.",
    "aux_norm_low.": "fc_norm.0.",
    "aux_norm_mid.": "fc_norm.1.",
    "aux_norm_high.": "fc_norm.2.",
}
"""Beginnings of names that public drafters have for the same tensors."""
CONFIG_KEYS = frozenset(
    {
        "architectures", "model_type", "hidden_size", "target_hidden_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "intermediate_size", "hidden_act", "rms_norm_eps", "attention_bias",
        "mlp_bias", "bias", "rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "vocab_size",
        "draft_vocab_size", "tie_word_embeddings", "dtype", "torch_dtype", "num_target_layers",
        "num_aux_hidden_states", "fc_norm", "norm_output", "eagle_config",
    }
)  # fmt: skip
METHOD_KEYS = frozenset(
    {"eagle_aux_hidden_state_layer_ids", "use_aux_hidden_state", "norm_before_fc", "num_speculative_steps"}
)
FIRST_LAYER_ONE = frozenset({"deepseek_v2", "deepseek_v3", "glm4_moe_lite"})
"""Targets for which the engine takes explicit ids as ours only if the first of them is 1."""
INTEGERS = frozenset({"d2t", "t2d"})
USUAL_STEPS = 3
"""Of the engine, for most targets, where nobody says how many."""
USUAL_EPSILON = 1e-6


def layout_config(
    geometry: Mapping[str, Any], manifest: Mapping[str, Any], target: Mapping[str, Any], *, dtype: str
) -> dict[str, Any]:
    """``config.json`` of the draft.

    ``geometry``: the drafter's own config; ``target``: the target's Hugging Face config; ``dtype``: torch name.
    Raises ``ValueError`` where the engine would read other layers than the drafter was trained on.
    """
    require_layer_convention(manifest)
    ids = [int(i) for i in manifest["layer_ids"]]
    kind = target.get("model_type")
    if kind in FIRST_LAYER_ONE and ids[0] != 1:
        raise ValueError(
            f"layer_ids {ids}: for a {kind} target the engine reads the inputs of these layers instead of their "
            "outputs unless the first id is 1; train with layer_ids that begin with 1"
        )
    draft_size = geometry["draft_vocab_size"]
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        **backbone_keys(geometry, target, dtype=dtype),
        "target_hidden_size": int(geometry["hidden_size"]),
        "mlp_bias": False,
        "bias": False,
        "draft_vocab_size": None if draft_size is None else int(draft_size),
        "num_target_layers": int(target["num_hidden_layers"]),
        "num_aux_hidden_states": len(ids),
        "fc_norm": bool(geometry["fc_norm"]),
        "norm_output": bool(geometry["norm_output"]),
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": ids,
            "use_aux_hidden_state": True,
            "norm_before_fc": False,
            "num_speculative_steps": int(manifest["num_proposals"]),
        },
    }


def layout_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Exact names and shapes of the checkpoint that ``config`` describes (linear weights ``[out, in]``)."""
    hidden, captured = config["hidden_size"], len(config["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
    shapes = {"fc.weight": (hidden, captured * hidden), "norm.weight": (hidden,)}
    if config["fc_norm"]:
        shapes |= {f"fc_norm.{k}.weight": (hidden,) for k in range(captured)}
    if (size := config["draft_vocab_size"]) is not None:
        shapes |= {"lm_head.weight": (size, hidden), "d2t": (size,), "t2d": (config["vocab_size"],)}
    for index in range(config["num_hidden_layers"]):
        prefix = "midlayer." if index == 0 else f"layers.{index}."
        shapes |= {prefix + name: shape for name, shape in _layer(config, first=index == 0).items()}
    return shapes


def _layer(config: Mapping[str, Any], *, first: bool) -> dict[str, tuple[int, ...]]:
    hidden = config["hidden_size"]
    return {
        **({"input_layernorm.weight": (hidden,)} if first else {}),
        "hidden_norm.weight": (hidden,),
        **layer_shapes(config, width=2 * hidden if first else hidden),
    }


def geometry_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The drafter's own config as an engine understands ``config``: the inverse of ``layout_config``."""
    method = config["eagle_config"]
    return {
        **sizes_of(config),
        "steps": method["num_speculative_steps"],
        "layer_ids": list(method["eagle_aux_hidden_state_layer_ids"]),
        "draft_vocab_size": config["draft_vocab_size"],
        "fc_norm": config["fc_norm"],
        "norm_output": config["norm_output"],
    }


def export_tensors(trained: Mapping[str, Tensor], *, dtype: str) -> dict[str, Tensor]:
    """The names are the network's own; offsets stay int64, the mask bool."""
    import torch

    kinds = {"d2t": torch.int64, "t2d": torch.bool}
    maps = {name: trained[name].to(kind).contiguous() for name, kind in kinds.items() if name in trained}
    weights = {name: tensor for name, tensor in trained.items() if name not in INTEGERS}
    return {**cast_tensors(weights, dtype=dtype), **maps}


def drafter_tensors(exported: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor if name in INTEGERS else tensor.float() for name, tensor in exported.items()}


def as_read(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Names with or without ``model.``; a copy of the target's embedding is replaced by the target's."""
    found = {}
    for name, tensor in tensors.items():
        short = name.removeprefix("model.")
        own = next((new + short.removeprefix(old) for old, new in RENAMED.items() if short.startswith(old)), short)
        if not own.startswith("embed_tokens"):
            found[own] = tensor
    if "d2t" in found and "t2d" not in found and config.get("vocab_size"):  # the engine does not read it
        found["t2d"] = _mask_of(found["d2t"], int(config["vocab_size"]))
    method: dict[str, Any] = {
        "use_aux_hidden_state": True,
        "norm_before_fc": bool(config.get("norm_before_fc")),
        "num_speculative_steps": USUAL_STEPS,
    }
    method |= {key: value for key, value in (config.get("eagle_config") or {}).items() if value is not None}
    if "eagle_aux_hidden_state_layer_ids" not in method:
        method["eagle_aux_hidden_state_layer_ids"] = default_layer_ids(config.get("num_target_layers"))
    ids = method["eagle_aux_hidden_state_layer_ids"]
    defaults = {
        "fc_norm": bool(config.get("use_aux_norm")),
        "norm_output": False,
        "bias": False,
        "head_dim": config["hidden_size"] // config["num_attention_heads"],
        "num_key_value_heads": config["num_attention_heads"],
        "rms_norm_eps": USUAL_EPSILON,
        "num_aux_hidden_states": len(ids),
    }
    stated = {key: value for key, value in config.items() if value is not None or key == "draft_vocab_size"}
    return {**defaults, **stated, "eagle_config": method}, found


def default_layer_ids(num_target_layers: int | None) -> list[int]:
    """The layers whose outputs the engine captures where the config names none; few targets have others."""
    if num_target_layers is None:
        raise ValueError(
            "expected eagle_config.eagle_aux_hidden_state_layer_ids, or a target that is known; found none"
        )
    return [1, num_target_layers // 2 - 1, num_target_layers - 4]


def _mask_of(offsets: Tensor, vocab_size: int) -> Tensor:
    import torch

    ids = offsets.long() + torch.arange(offsets.numel())
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[ids[(ids >= 0) & (ids < vocab_size)]] = True
    return mask


def launch_flags(manifest: Mapping[str, Any]) -> dict[str, str]:
    return round_flags(manifest, algorithm="EAGLE3")


def read_back(config: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("eagle_config", "draft_vocab_size", "fc_norm", "norm_output", "head_dim", "num_aux_hidden_states")
    return {key: config[key] for key in keys}


def _constants(config: Mapping[str, Any]) -> dict[str, Any]:
    """What every export has, and an engine would not miss."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bias": False,
        "tie_word_embeddings": False,
        "target_hidden_size": config["hidden_size"],
        "num_aux_hidden_states": len(config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]),
    }


RULES = {
    "config-keys": lint_rules.config_keys(CONFIG_KEYS, eagle_config=(METHOD_KEYS, frozenset())),
    "constants": lint_rules.constants(_constants),
    "sizes": lint_rules.sizes,
    "layer-ids": lint_rules.layer_ids("eagle_config", "eagle_aux_hidden_state_layer_ids"),
    "features": eagle3_rules.features(FIRST_LAYER_ONE),
    "recurrence": eagle3_rules.recurrence,
    "steps": steps("eagle_config", "num_speculative_steps"),
    "vocabulary": eagle3_rules.vocabulary,
    **lint_rules.of_every_method(layout_shapes, export_tensors),
}
