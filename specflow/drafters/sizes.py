"""Sizes that drafters of every method have: those of the target, and what must hold of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any


def sizes_of_target(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that draft layers shaped like the target's take from its ``config.json``."""
    hidden = int(config["hidden_size"])
    heads = int(config["num_attention_heads"])
    return {
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": int(config.get("num_key_value_heads") or heads),
        "head_dim": int(config.get("head_dim") or hidden // heads),
        "intermediate_size": int(config.get("intermediate_size") or 4 * hidden),
        "rms_norm_eps": float(config.get("rms_norm_eps", 1e-6)),
        "rope_parameters": rope_parameters_of(config),
        "vocab_size": int(config["vocab_size"]),
        "max_position_embeddings": int(config.get("max_position_embeddings", 32768)),
    }


def rope_parameters_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary parameters of a HF config in either form (``rope_parameters`` or ``rope_theta``/``rope_scaling``).

    Nested per-layer-type parameters are reduced to those of full attention.
    """
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if "full_attention" in given:
        given = given["full_attention"]
    found = {k: v for k, v in given.items() if k not in ("type", "partial_rotary_factor") and v is not None}
    found["rope_type"] = given.get("rope_type", given.get("type", "default"))
    found["rope_theta"] = float(given.get("rope_theta", config.get("rope_theta", 10000.0)))
    return found


def check_heads(*, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    """``ValueError`` unless attention can be built with them."""
    if num_heads % num_kv_heads:
        raise ValueError(f"num_heads {num_heads} is not a multiple of num_kv_heads {num_kv_heads}")
    if head_dim % 2:
        raise ValueError(f"head_dim {head_dim} is odd; rotary embedding needs pairs")


def check_keys(geometry: Any, values: Mapping[str, Any]) -> None:
    """``ValueError`` naming unknown keys, and missing ones that have no default in the dataclass ``geometry``."""
    known = {f.name for f in fields(geometry)}
    needed = {f.name for f in fields(geometry) if f.default is MISSING}
    if not needed <= set(values) <= known:
        missing, unknown = sorted(needed - set(values)), sorted(set(values) - known)
        raise ValueError(f"drafter geometry: missing keys {missing}, unknown keys {unknown}")
