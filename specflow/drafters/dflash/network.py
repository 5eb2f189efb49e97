"""The DFlash draft network (arXiv 2602.06036): decoder layers over one block, context injected as keys and values.

Parameter names are those the serving engine loads. Legend: N blocks, B rows of a block, S context rows of all
documents, K captured layers, H hidden size, G key heads, d head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from specflow.drafters.dflash.attention import Span, block_attention
from specflow.drafters.dflash.geometry import DFlashGeometry
from specflow.drafters.fused import rms_norm_rotated
from specflow.drafters.layers import MLP, RMSNorm
from specflow.drafters.rope import cos_sin, inverse_frequencies


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
        """``q_proj``'s output ``[..., A * d]`` -> ``[..., A, d]``, normalised and rotated."""
        return rms_norm_rotated(x.view(*x.shape[:-1], -1, self.size), self.q_norm.weight, self.q_norm.eps, cos, sin)

    def key(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``k_proj``'s output ``[..., G * d]`` -> ``[..., G, d]``, normalised and rotated."""
        return rms_norm_rotated(x.view(*x.shape[:-1], -1, self.size), self.k_norm.weight, self.k_norm.eps, cos, sin)

    def value(self, x: Tensor) -> Tensor:
        """``v_proj``'s output ``[..., G * d]`` -> ``[..., G, d]``."""
        return x.view(*x.shape[:-1], -1, self.size)


class Layer(nn.Module):
    def __init__(self, geometry: DFlashGeometry, index: int = 0) -> None:
        super().__init__()
        self.index, self.rule = index, geometry.rule(index)
        self.input_layernorm = RMSNorm(geometry.hidden_size, geometry.rms_norm_eps)
        self.self_attn = Attention(geometry)
        self.post_attention_layernorm = RMSNorm(geometry.hidden_size, geometry.rms_norm_eps)
        self.mlp = MLP(geometry.hidden_size, geometry.intermediate_size)

    def forward(
        self, x_NBH: Tensor, cos: Tensor, sin: Tensor, *, context: Context, first_row: int, equal_masks: bool
    ) -> Tensor:
        """Rows ``first_row..B-1`` after this layer; every row still serves as key and value.

        ``equal_masks``: rows 1..B-1 of all blocks are the same, as in the first layer; they are projected once.
        """
        if equal_masks:
            inputs = self.input_layernorm(distinct_rows(x_NBH))
            attended = self.attend(inputs, cos, sin, context=context, first_row=first_row, size=x_NBH.shape[1])
        else:
            attended = self.attend(self.input_layernorm(x_NBH), cos, sin, context=context, first_row=first_row)
        x = x_NBH[:, first_row:] + attended
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out

    def attend(
        self,
        inputs: Tensor,
        cos: Tensor,
        sin: Tensor,
        *,
        context: Context,
        first_row: int,
        size: int | None = None,
        distinct: int = 1,
    ) -> Tensor:
        """``[N, B - first_row, H]``: attention over context and block, from ``[N, B, H]`` normalised rows.

        ``size``: B, where ``inputs`` are ``distinct_rows`` of blocks of this size with so many rows of their own.
        """
        attention = self.self_attn
        if size is None:
            query, key, value = (
                attention.q_proj(inputs[:, first_row:]),
                attention.k_proj(inputs),
                attention.v_proj(inputs),
            )
        else:
            query, key, value = (
                repeat_masks(project(inputs), size, distinct=distinct)
                for project in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            query = query[:, first_row:]
        attended = block_attention(
            attention.query(query, cos[:, first_row:], sin[:, first_row:]),
            attention.key(key, cos, sin),
            attention.value(value),
            context.keys[self.index],
            context.values[self.index],
            spans=context.spans,
            visible_N=context.visible_N,
            rule=self.rule,
        )
        out: Tensor = attention.o_proj(attended)
        return out


def distinct_rows(x_NBH: Tensor, *, distinct: int = 1) -> Tensor:
    """``[N * distinct + 1, ..]``: the first rows of every block, then the one row that all others equal."""
    return torch.cat((x_NBH[:, :distinct].flatten(0, 1), x_NBH[:1, distinct]))


def repeat_masks(rows: Tensor, block_size: int, *, distinct: int = 1) -> Tensor:
    """``[N * distinct + 1, ..]`` of ``distinct_rows`` -> ``[N, B, ..]``."""
    own = rows[:-1].view(-1, distinct, *rows.shape[1:])
    masks = rows[-1:].expand(own.shape[0], block_size - distinct, *rows.shape[1:])
    return torch.cat((own, masks), dim=1)


class DFlashNetwork(nn.Module):
    """Trainable part of a DFlash drafter; embeddings and head are the target's and stay outside."""

    frequencies: Tensor
    layer_type: type[Layer] = Layer

    def __init__(self, geometry: DFlashGeometry) -> None:
        super().__init__()
        self.geometry = geometry
        hidden, eps = geometry.hidden_size, geometry.rms_norm_eps
        self.fc = nn.Linear(geometry.num_features * hidden, hidden, bias=False)
        self.hidden_norm = RMSNorm(hidden, eps)
        self.layers = nn.ModuleList(self.layer_type(geometry, i) for i in range(geometry.num_layers))
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
        attentions = [layer.self_attn for layer in self._layers()]
        keys = [attention.key(attention.k_proj(context_TH), cos, sin) for attention in attentions]
        return keys, [attention.value(attention.v_proj(context_TH)) for attention in attentions]

    def forward(self, embeds_NBH: Tensor, positions_NB: Tensor, context: Context, *, first_row: int = 0) -> Tensor:
        """``[N, B - first_row, H]`` after the final norm: what the target's head reads.

        ``embeds_NBH`` are target embeddings of ``[anchor, MASK, ..]``: rows 1.. of all blocks are taken to be equal.
        Row 0 predicts nothing, so training passes ``first_row=1`` and the last layer leaves it out.
        """
        cos, sin = cos_sin(positions_NB, self.frequencies, self.rope_factor)
        x = embeds_NBH
        for index, layer in enumerate(self._layers()):
            last = index == self.geometry.num_layers - 1
            x = layer(x, cos, sin, context=context, first_row=first_row if last else 0, equal_masks=index == 0)
        hidden: Tensor = self.norm(x)
        return hidden

    def _layers(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]
