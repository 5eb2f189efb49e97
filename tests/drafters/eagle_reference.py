"""EAGLE in float64, written from METHODS 2 for tests: no product code is used, nothing is chunked or cached."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specflow.drafters.eagle.geometry import EagleGeometry
from tests.drafters.eagle3_reference import Text, Weights, after, attend, norm, rope


def chain(w: Weights, g: EagleGeometry, embedding: Tensor, text: Text, start: int, tokens: Sequence[int]) -> Tensor:
    """``[m, H]``: what the head reads of the row at ``start``, then of one row for each but the last of ``tokens``."""
    assert text.last_hidden is not None
    states = list(text.last_hidden[: start + 1].double())
    ids = text.ids[1 : start + 2].tolist()
    found = []
    for token in tokens:
        states.append(all_layers(w, g, torch.stack(states), embedding.double()[torch.tensor(ids)])[-1])
        found.append(states[-1])
        ids.append(token)
    return torch.stack(found)


def all_layers(w: Weights, g: EagleGeometry, states: Tensor, embeds: Tensor, *, widen: int = 0) -> Tensor:
    """``widen``: how many rows after its own a row sees, a planted leak."""
    count = states.shape[0]
    positions, mask = torch.arange(count), torch.ones(count, count, dtype=torch.bool).tril(widen)
    x = torch.cat((embeds, states), dim=1) @ w["fc.weight"].T + w["fc.bias"]
    for layer in range(g.num_layers):
        prefix = f"layers.{layer}."
        read = norm(x, w[prefix + "input_layernorm.weight"], g) if layer else x
        query, key, value = (
            (read @ w[f"{prefix}self_attn.{name}_proj.weight"].T).unflatten(1, (-1, g.head_dim)) for name in "qkv"
        )
        x = after(w, g, prefix, x, attend(rope(query, positions, g), rope(key, positions, g), value, mask, g))
    return x


def dense_loss(
    w: Weights,
    g: EagleGeometry,
    texts: Sequence[Text],
    noises: Sequence[Tensor],
    embedding: Tensor,
    head: Tensor,
    *,
    draft_ids: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor, int, int]:
    """Mean smooth L1, mean soft cross-entropy, how many tokens the first is over, and how many the second."""
    ids_D = torch.arange(g.vocab_size) if draft_ids is None else torch.tensor(draft_ids)
    features, tokens = [], []
    for text, noise in zip(texts, noises, strict=True):
        assert text.last_hidden is not None
        true = text.last_hidden.double()
        rows = noise.shape[0]
        found = all_layers(w, g, true[:rows] + noise.double(), embedding.double()[text.ids[1 : rows + 1]])
        for place in range(2, len(text.ids)):
            if not text.supervised[place]:
                continue
            gap = (found[place - 2] - true[place - 1]).abs()
            features.append(torch.where(gap < 1, gap**2 / 2, gap - 0.5).mean())
            teacher = head.double() @ true[place - 1]
            if int(teacher.argmax()) in ids_D:
                log_q = (head.double() @ found[place - 2])[ids_D].log_softmax(0)
                tokens.append(-(teacher[ids_D].softmax(0) * log_q).sum())
    return torch.stack(features).mean(), torch.stack(tokens).mean(), len(features), len(tokens)
