"""How SGLang 0.5.23 reads a draft of the DFlash family that was not exported here: defaults, places and names.

Public drafts leave out keys that have defaults, state method keys in one of two places, may prefix names with
``model.`` and may hold copies of the target's embedding and head, which the engine leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "model."
SHARED = ("embed_tokens", "lm_head", "rotary_emb")
ALIASES = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}
METHOD_KEYS = ("mask_token", "mask_token_id", "target_layer_ids", "num_target_layers", "block_size")
DEFAULT_BLOCK, DEFAULT_POSITIONS, DEFAULT_EPSILON = 16, 32768, 1e-6


def config_as_read(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the engine's defaults; method keys both at the top and in ``dflash_config``, which wins."""
    nested = dict(config.get("dflash_config") or {})
    stated = {key: nested.get(key, config.get(key)) for key in METHOD_KEYS}
    heads = config.get("num_attention_heads")
    found: dict[str, Any] = {
        "num_key_value_heads": heads,
        "head_dim": config["hidden_size"] // heads if heads else None,
        "rms_norm_eps": DEFAULT_EPSILON,
        "max_position_embeddings": DEFAULT_POSITIONS,
        **{key: value for key, value in config.items() if value is not None},
    }
    if stated["block_size"] is None:
        stated["block_size"] = DEFAULT_BLOCK
    if stated["target_layer_ids"] is None and stated["num_target_layers"] is not None:
        stated["target_layer_ids"] = default_layer_ids(stated["num_target_layers"], config["num_hidden_layers"])
    method = {key: value for key, value in stated.items() if value is not None}
    top: dict[str, Any] = {key: method[key] for key in ("block_size", "num_target_layers") if key in method}
    return {**found, **top, "dflash_config": {**nested, **method}}


def default_layer_ids(num_target_layers: int, num_layers: int) -> list[int]:
    """The layers whose output is captured where the config names none: spread over all but the ends of the target."""
    if num_layers == 1:
        return [num_target_layers // 2]
    if num_target_layers < 4:
        raise ValueError(f"expected target_layer_ids, or a target of at least 4 layers, found {num_target_layers}")
    return [round(1 + i * (num_target_layers - 4) / (num_layers - 1)) for i in range(num_layers)]


def tensors_as_read(tensors: Mapping[str, Tensor], *, unprefixed: Sequence[str] = ()) -> dict[str, Tensor]:
    """Tensors under our names. ``unprefixed``: what the engine knows only without ``model.``; kept as it is."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        short = name.removeprefix(PREFIX)
        if name != short and short.startswith(tuple(unprefixed)):
            found[name] = tensor
        elif not short.startswith(SHARED):
            found[ALIASES.get(short, short)] = tensor
    return found
