"""Which transformers models can be a target; the rest is refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specflow.targets.base import TargetError

LAYER_TYPES = {"full_attention", "sliding_attention"}
ROPE_TYPES_BY_LENGTH = {"dynamic", "longrope"}


def check_supported(config: Any, where: Path) -> None:
    """Raise ``TargetError`` naming what the engine cannot run. ``config`` is the model's HF config."""
    name = f"{where}: {getattr(config, 'model_type', 'model')}"
    if getattr(config, "is_encoder_decoder", False):
        raise TargetError(f"{name} is an encoder-decoder model; a target must be decoder-only")
    if not hasattr(config, "num_hidden_layers") or not hasattr(config, "vocab_size"):
        raise TargetError(f"{name} has no num_hidden_layers/vocab_size: only text-only decoders can be targets")
    others = sorted(set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES)
    if others:
        raise TargetError(f"{name} has layers of type {', '.join(others)}; supported: {', '.join(sorted(LAYER_TYPES))}")
    if getattr(config, "attention_chunk_size", None):
        raise TargetError(f"{name} uses chunked attention, which the engine does not support")
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {str(value) for value in _values(rope, "rope_type")}
    if kinds & ROPE_TYPES_BY_LENGTH:
        raise TargetError(
            f"{name} has rope type {', '.join(sorted(kinds))}, whose angles change with the length of the text; "
            "cached keys would be wrong"
        )


def _values(mapping: Any, key: str) -> list[Any]:
    """Values of ``key`` in ``mapping`` and in mappings inside it (rope parameters per layer type)."""
    if not isinstance(mapping, dict):
        return []
    found = [mapping[key]] if key in mapping else []
    return found + [value for inner in mapping.values() for value in _values(inner, key)]
