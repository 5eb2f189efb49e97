"""The DFlash loss of some documents in float64: one dense mask over everything, whole logits, plain autograd.

Written from METHODS 5 for tests: nothing is chunked, shared or restricted, and no code of the product is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specflow.drafters.dflash.geometry import DFlashGeometry


@dataclass(frozen=True)
class Text:
    ids: Tensor
    supervised: Tensor
    features: Tensor
    anchors: Sequence[int]
    last_hidden: Tensor | None = None


def dense_loss(
    weights: Mapping[str, Tensor],
    g: DFlashGeometry,
    texts: Sequence[Text],
    embedding: Tensor,
    head: Tensor,
    *,
    decay: float,
    soft_targets: float = 0.0,
) -> Tensor:
    """``sum M w CE / sum M w`` over all texts; ``weights`` are float64 tensors by parameter name."""
    blocks = [(t, text, anchor) for t, text in enumerate(texts) for anchor in text.anchors]
    context_text = torch.tensor([t for t, text in enumerate(texts) for _ in text.ids])
    context_position = torch.cat([torch.arange(len(text.ids)) for text in texts])
    features = torch.cat([text.features for text in texts]).double().flatten(1)
    context = _norm(features @ weights["fc.weight"].T, weights["hidden_norm.weight"], g)
    block_of_row = torch.arange(len(blocks)).repeat_interleave(g.block_size)
    position = torch.tensor([anchor + i for _, _, anchor in blocks for i in range(g.block_size)])
    ids = torch.tensor(
        [text.ids[a] if i == 0 else g.mask_token_id for _, text, a in blocks for i in range(g.block_size)]
    )
    row_text = torch.tensor([t for t, _, _ in blocks])[block_of_row]
    row_anchor = torch.tensor([a for _, _, a in blocks])[block_of_row]
    sees_context = (row_text[:, None] == context_text) & (context_position < row_anchor[:, None])
    sees = torch.cat((sees_context, block_of_row[:, None] == block_of_row), dim=1)
    x = embedding.double()[ids]
    for i in range(g.num_layers):
        x = _layer(weights, f"layers.{i}.", g, x, context, sees, position, context_position)
    logits = (_norm(x, weights["norm.weight"], g) @ head.double().T).view(len(blocks), g.block_size, -1)
    return _mean(blocks, logits, head.double(), g, decay=decay, soft_targets=soft_targets)


def _mean(
    blocks: Sequence[tuple[int, Text, int]],
    logits: Tensor,
    head: Tensor,
    g: DFlashGeometry,
    *,
    decay: float,
    soft_targets: float,
) -> Tensor:
    numerator, denominator = torch.zeros((), dtype=torch.float64), 0.0
    for n, (_, text, anchor) in enumerate(blocks):
        for j in range(1, g.block_size):
            at = anchor + j
            if at >= len(text.ids) or not text.supervised[anchor : at + 1].all():
                break
            target = torch.zeros(logits.shape[-1], dtype=torch.float64)
            target[text.ids[at]] = 1.0
            if text.last_hidden is not None:
                teacher = (head @ text.last_hidden[at - 1].double()).softmax(0)
                target = (1 - soft_targets) * target + soft_targets * teacher
            weight = torch.exp(torch.tensor(-(j - 1) / decay, dtype=torch.float64))
            numerator = numerator - weight * (target * logits[n, j].log_softmax(0)).sum()
            denominator += float(weight)
    return numerator / denominator


def _layer(
    weights: Mapping[str, Tensor],
    prefix: str,
    g: DFlashGeometry,
    x: Tensor,
    context: Tensor,
    sees: Tensor,
    position: Tensor,
    context_position: Tensor,
) -> Tensor:
    def w(name: str) -> Tensor:
        return weights[f"{prefix}{name}.weight"]

    def heads(y: Tensor, name: str) -> Tensor:
        return (y @ w(f"self_attn.{name}").T).unflatten(-1, (-1, g.head_dim))

    normed = _norm(x, w("input_layernorm"), g)
    both, positions = torch.cat((context, normed)), torch.cat((context_position, position))
    query = _rope(_norm(heads(normed, "q_proj"), w("self_attn.q_norm"), g), position, g)
    key = _rope(_norm(heads(both, "k_proj"), w("self_attn.k_norm"), g), positions, g)
    shared = g.num_heads // g.num_kv_heads
    key = key.repeat_interleave(shared, dim=1)
    value = heads(both, "v_proj").repeat_interleave(shared, dim=1)
    scores = torch.einsum("qad,kad->aqk", query, key) / g.head_dim**0.5
    mixed = torch.einsum("aqk,kad->qad", scores.masked_fill(~sees, float("-inf")).softmax(-1), value)
    x = x + mixed.flatten(1) @ w("self_attn.o_proj").T
    y = _norm(x, w("post_attention_layernorm"), g)
    gate = y @ w("mlp.gate_proj").T
    return x + (gate * gate.sigmoid() * (y @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T


def _norm(x: Tensor, weight: Tensor, g: DFlashGeometry) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + g.rms_norm_eps).sqrt() * weight


def _rope(x: Tensor, position: Tensor, g: DFlashGeometry) -> Tensor:
    half = g.head_dim // 2
    rates = float(g.rope_parameters["rope_theta"]) ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = (position[:, None].double() * rates)[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)
