"""Rotary position embedding (neox halves), fp32, shared by draft networks and proposers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def inverse_frequencies(
    rope_parameters: Mapping[str, Any], *, head_dim: int, max_position_embeddings: int
) -> tuple[Tensor, float]:
    """``[head_dim / 2]`` fp32 inverse frequencies and the factor on cos and sin.

    Scaled types (``linear``, ``llama3``, ``yarn``, ``longrope``) come from transformers' own table.
    """
    kind = rope_parameters.get("rope_type", "default")
    if kind == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        return 1.0 / (float(rope_parameters["rope_theta"]) ** exponents), 1.0
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if kind not in ROPE_INIT_FUNCTIONS:
        raise ValueError(f"rope_type {kind!r} is unknown; known: default, {', '.join(sorted(ROPE_INIT_FUNCTIONS))}")
    config = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        head_dim=head_dim,
        max_position_embeddings=max_position_embeddings,
        rope_parameters=dict(rope_parameters),
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return frequencies.float(), float(factor)


def cos_sin(positions: Tensor, frequencies: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """``positions`` [...] -> cos and sin [..., head_dim / 2], fp32."""
    angles = positions.unsqueeze(-1).float() * frequencies
    return angles.cos() * factor, angles.sin() * factor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate ``x`` [..., heads, head_dim] by ``cos``/``sin`` [..., head_dim / 2]; pairs are the two halves."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
