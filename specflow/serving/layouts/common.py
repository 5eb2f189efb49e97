"""What the layouts of all methods share: the rotary base in both forms, casts, files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.serving.draft import TOKEN_MAP

if TYPE_CHECKING:
    from torch import Tensor

LAYER_CONVENTION = "output_of_layer"
"""Of our manifests, and of the ids in every layout."""


def require_layer_convention(manifest: Mapping[str, Any]) -> None:
    """``ValueError`` where the manifest's layer ids mean something else than the engine's."""
    if manifest.get("layer_convention") != LAYER_CONVENTION:
        raise ValueError(f"expected layer_convention {LAYER_CONVENTION!r}, found {manifest.get('layer_convention')!r}")


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary parameters ``{rope_type, rope_theta, ...}`` from either form of a config; the newer form wins.

    Raises ``ValueError`` where neither form gives a base, or the two contradict each other.
    """
    newer, older = config.get("rope_parameters"), config.get("rope_theta")
    theta = (newer or {}).get("rope_theta", older)
    if theta is None:
        raise ValueError("expected rope_theta or rope_parameters.rope_theta, found neither")
    if newer and older is not None and float(older) != float(theta):
        raise ValueError(f"expected one rotary base, found rope_theta {older} and rope_parameters {newer}")
    scaling = dict(config.get("rope_scaling") or {})
    found = {**scaling, **(newer or {}), "rope_theta": float(theta)}
    found["rope_type"] = found.get("rope_type") or found.pop("type", None) or "default"
    return found


def rope_keys(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Both forms of the rotary parameters, as ``config.json`` has them."""
    scaling = {k: v for k, v in rope.items() if k != "rope_theta"}
    return {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": scaling if scaling["rope_type"] != "default" else None,
        "rope_parameters": dict(rope),
    }


def stretched(geometry: Mapping[str, Any], *, positions: int, factor: float) -> dict[str, Any]:
    """The geometry with its rotary positions stretched by YaRN, for a target that is served with the same factor.

    ``positions``: of the target, without the factor. Raises ``ValueError`` where they are scaled already.
    """
    rope = rope_of(geometry)
    if rope["rope_type"] != "default":
        raise ValueError(f"expected plain rotary positions to stretch by YaRN, found {rope['rope_type']!r} already")
    scaled = {**rope, "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": positions}
    return {**geometry, "rope_parameters": scaled, "max_position_embeddings": int(positions * factor)}


def backbone_keys(geometry: Mapping[str, Any], target: Mapping[str, Any], *, dtype: str) -> dict[str, Any]:
    """What ``config.json`` says of decoder layers that borrow the target's embedding and head.

    ``geometry``: the drafter's own config; ``target``: the target's; ``dtype``: torch name.
    """
    return {
        "hidden_size": int(geometry["hidden_size"]),
        "num_hidden_layers": int(geometry["num_layers"]),
        "num_attention_heads": int(geometry["num_heads"]),
        "num_key_value_heads": int(geometry["num_kv_heads"]),
        "head_dim": int(geometry["head_dim"]),
        "intermediate_size": int(geometry["intermediate_size"]),
        "hidden_act": "silu",
        "rms_norm_eps": float(geometry["rms_norm_eps"]),
        "attention_bias": False,
        **rope_keys(rope_of(geometry)),
        "max_position_embeddings": int(target["max_position_embeddings"]),
        "vocab_size": int(target["vocab_size"]),
        "tie_word_embeddings": False,
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def sizes_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of ``backbone_keys``: the sizes of a drafter's own config."""
    return {
        "hidden_size": config["hidden_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "num_kv_heads": config["num_key_value_heads"],
        "head_dim": config["head_dim"],
        "intermediate_size": config["intermediate_size"],
        "rms_norm_eps": config["rms_norm_eps"],
        "rope_parameters": rope_of(config),
        "vocab_size": config["vocab_size"],
        "max_position_embeddings": config["max_position_embeddings"],
    }


def cast_tensors(tensors: Mapping[str, Tensor], *, dtype: str) -> dict[str, Tensor]:
    """Contiguous copies in ``dtype``. Raises ``ValueError`` naming every tensor that the dtype cannot hold."""
    import torch

    kind = getattr(torch, dtype)
    limit = torch.finfo(kind).max
    bad = [
        f"{name}: largest magnitude {float(t.abs().max()):.4g}"
        for name, t in tensors.items()
        if not bool(torch.isfinite(t).all()) or float(t.abs().max()) > limit
    ]
    if bad:
        raise ValueError(f"expected finite values within {limit:.4g} ({dtype}), found " + "; ".join(bad))
    return {name: t.to(kind).contiguous() for name, t in sorted(tensors.items())}


def write_layout(directory: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write ``config.json`` and the tensors to ``directory``, which is made if absent.

    A tensor of the name ``TOKEN_MAP`` becomes a file of that name, a list of ids; all others, ``model.safetensors``.
    """
    import torch
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    stored = {name: tensor for name, tensor in tensors.items() if name != TOKEN_MAP}
    save_file(stored, str(directory / "model.safetensors"), metadata={"format": "pt"})
    if TOKEN_MAP in tensors:
        torch.save(tensors[TOKEN_MAP].tolist(), directory / TOKEN_MAP)
