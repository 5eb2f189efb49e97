"""The DFlash draft network (arXiv 2602.06036): decoder layers over one block, context injected as keys and values.

Parameter names are those the serving engine loads. Legend: N blocks, B rows of a block, S context rows of all
documents, K captured layers, H hidden size, G key heads, d head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specflow.drafters.dflash.attention import Span, block_attention
from specflow.drafters.dflash.geometry import DFlashGeometry
from specflow.drafters.rope import cos_sin, inverse_frequencies, rotate


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, computed in fp32, returned in the input's dtype."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * self.weight.float()).to(x.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What blocks may see of their documents: keys and values of every draft layer, and who sees what."""

    keys: Sequence[Tensor]
    """Per layer ``[S, G, d]``, rotated."""
    values: Sequence[Tensor]
    """Per layer ``[S, G, d]``."""
    spans: Sequence[Span]
    visible_N: Tensor
    """Context rows of its own document that block n sees: the anchor's position."""


class Attention(nn.Module):
    def __init__(self, geometry: DFlashGeometry) -> None:
        super().__init__()
        self.size = geometry.head_dim
        hidden, heads, kv_heads = geometry.hidden_size, geometry.num_heads, geometry.num_kv_heads
        self.q_proj = nn.Linear(hidden, heads * self.size, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(heads * self.size, hidden, bias=False)
        self.q_norm = RMSNorm(self.size, geometry.rms_norm_eps)
        self.k_norm = RMSNorm(self.size, geometry.rms_norm_eps)

    def query(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``[..., H]`` -> ``[..., A, d]``, normalised and rotated."""
        return rotate(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.size))).float(), cos, sin)

    def key_value(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """``[..., H]`` -> keys (normalised, rotated) and values ``[..., G, d]``."""
        key = rotate(self.k_norm(self.k_proj(x).unflatten(-1, (-1, self.size))).float(), cos, sin)
        return key, self.v_proj(x).unflatten(-1, (-1, self.size)).float()


class MLP(nn.Module):
    def __init__(self, geometry: DFlashGeometry) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(geometry.hidden_size, geometry.intermediate_size, bias=False)
        self.up_proj = nn.Linear(geometry.hidden_size, geometry.intermediate_size, bias=False)
        self.down_proj = nn.Linear(geometry.intermediate_size, geometry.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, geometry: DFlashGeometry) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(geometry.hidden_size, geometry.rms_norm_eps)
        self.self_attn = Attention(geometry)
        self.post_attention_layernorm = RMSNorm(geometry.hidden_size, geometry.rms_norm_eps)
        self.mlp = MLP(geometry)

    def forward(
        self, x_NBH: Tensor, cos: Tensor, sin: Tensor, *, context: Context, index: int, first_row: int
    ) -> Tensor:
        """Rows ``first_row..B-1`` after this layer; every row still serves as key and value."""
        normed = self.input_layernorm(x_NBH)
        key, value = self.self_attn.key_value(normed, cos, sin)
        query = self.self_attn.query(normed[:, first_row:], cos[:, first_row:], sin[:, first_row:])
        attended = block_attention(
            query,
            key,
            value,
            context.keys[index],
            context.values[index],
            spans=context.spans,
            visible_N=context.visible_N,
        )
        x = x_NBH[:, first_row:] + self.self_attn.o_proj(attended)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class DFlashNetwork(nn.Module):
    """Trainable part of a DFlash drafter; embeddings and head are the target's and stay outside."""

    frequencies: Tensor

    def __init__(self, geometry: DFlashGeometry) -> None:
        super().__init__()
        self.geometry = geometry
        hidden, eps = geometry.hidden_size, geometry.rms_norm_eps
        self.fc = nn.Linear(geometry.num_features * hidden, hidden, bias=False)
        self.hidden_norm = RMSNorm(hidden, eps)
        self.layers = nn.ModuleList(Layer(geometry) for _ in range(geometry.num_layers))
        self.norm = RMSNorm(hidden, eps)
        frequencies, self.rope_factor = inverse_frequencies(
            geometry.rope_parameters,
            head_dim=geometry.head_dim,
            max_position_embeddings=geometry.max_position_embeddings,
        )
        self.register_buffer("frequencies", frequencies, persistent=False)

    def project_context(self, features_TKH: Tensor, positions_T: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Keys (rotated at ``positions_T``) and values ``[T, G, d]`` of every draft layer from target features."""
        context_TH = self.hidden_norm(self.fc(features_TKH.flatten(1)))
        cos, sin = cos_sin(positions_T, self.frequencies, self.rope_factor)
        pairs = [layer.self_attn.key_value(context_TH, cos, sin) for layer in self._layers()]
        return [key for key, _ in pairs], [value for _, value in pairs]

    def forward(self, embeds_NBH: Tensor, positions_NB: Tensor, context: Context, *, first_row: int = 0) -> Tensor:
        """``[N, B - first_row, H]`` after the final norm: what the target's head reads.

        ``embeds_NBH`` are target embeddings of ``[anchor, MASK, ..]``; row 0 predicts nothing, so training
        passes ``first_row=1`` and the last layer leaves it out.
        """
        cos, sin = cos_sin(positions_NB, self.frequencies, self.rope_factor)
        x = embeds_NBH
        for index, layer in enumerate(self._layers()):
            last = index == self.geometry.num_layers - 1
            x = layer(x, cos, sin, context=context, index=index, first_row=first_row if last else 0)
        hidden: Tensor = self.norm(x)
        return hidden

    def _layers(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]
