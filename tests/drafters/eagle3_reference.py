"""EAGLE-3 in float64, written from METHODS 4 for tests: nothing is chunked, shared or cached, no product code is used.

``chain`` is the network as a serving engine runs it: one causal sequence whose later rows are fed by earlier ones.
``dense_loss`` is training with one dense mask over all rows of all depths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specflow.drafters.eagle3.geometry import Eagle3Geometry

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Text:
    ids: Tensor
    supervised: Tensor
    features: Tensor
    last_hidden: Tensor | None = None


def weights_of(network: torch.nn.Module) -> dict[str, Tensor]:
    """Float64 leaves by name."""
    return {name: p.detach().double().requires_grad_() for name, p in network.named_parameters()}


def chain(w: Weights, g: Eagle3Geometry, embedding: Tensor, text: Text, start: int, tokens: Sequence[int]) -> Tensor:
    """``[m, H]`` after the final norm: the row at ``start``, then one row for each but the last of ``tokens``.

    ``tokens``: proposals; token i is read by row i + 1.
    """
    states = [_fuse(w, g, text.features[row]) for row in range(start + 1)]
    ids = [int(text.ids[row + 1]) for row in range(start + 1)]
    found = []
    for token in (*tokens[:-1], None):
        out = _all_layers(w, g, torch.stack(states), embedding.double()[torch.tensor(ids)])
        hidden = norm(out[-1], w["norm.weight"], g)
        found.append(hidden)
        states.append(hidden if g.norm_output else out[-1])
        if token is not None:
            ids.append(token)
    return torch.stack(found)


def _all_layers(w: Weights, g: Eagle3Geometry, states: Tensor, embeds: Tensor) -> Tensor:
    x, count = states, states.shape[0]
    causal = torch.ones(count, count, dtype=torch.bool).tril()
    for layer in range(g.num_layers):
        query, key, value, prefix = _projected(w, g, layer, x, embeds, torch.arange(count))
        x = after(w, g, prefix, x, attend(query, key, value, causal, g))
    return x


def dense_loss(
    w: Weights,
    g: Eagle3Geometry,
    texts: Sequence[Text],
    embedding: Tensor,
    head: Tensor,
    *,
    depths: int,
    decay: float,
    draft_ids: Sequence[int] | None = None,
    kind: str = "soft_ce",
    reference_mask: bool = False,
    widen: int = 0,
) -> tuple[Tensor, int, int]:
    """``(sum over depths of decay^i * mean over kept tokens, kept tokens, dropped tokens)``.

    ``widen``: how many more depth-0 rows than its own a row sees, a planted leak.
    """
    ids_D = torch.arange(g.vocab_size) if draft_ids is None else torch.tensor(draft_ids)
    total, kept, dropped = torch.zeros((), dtype=torch.float64), 0, 0
    for text in texts:
        assert text.last_hidden is not None
        hidden = dense_hidden(w, g, text, embedding, depths=depths, widen=widen)
        own_head = w["lm_head.weight"] if "lm_head.weight" in w else head.double()
        for place in range(2, len(text.ids)):
            if not text.supervised[place - 2 if reference_mask else place]:
                continue
            teacher = head.double() @ text.last_hidden[place - 1].double()
            choice = int(teacher.argmax())
            if choice not in ids_D or (kind == "ce" and int(text.ids[place]) not in ids_D):
                dropped += 1
                continue
            kept += 1
            log_p = teacher[ids_D].log_softmax(0)
            rows = [(i, place - 2 - i) for i in range(depths) if place - 2 - i >= 0]
            log_q = torch.stack([(own_head @ hidden[i][row]).log_softmax(0) for i, row in rows])
            label = int((ids_D == text.ids[place]).nonzero()) if kind == "ce" else -1
            for (i, _), loss in zip(rows, distances(kind, log_q, log_p, label), strict=True):
                total = total + decay**i * loss
    return total / max(kept, 1), kept, dropped


def distances(kind: str, log_q: Tensor, log_p: Tensor, label: int, *, scale: float = 1.0, decay: float = 3.0) -> Tensor:
    """``[L]`` losses of one token at every depth, by the formulas of METHODS 8a."""
    p, q = log_p.exp(), log_q.exp()
    overlap, kl = torch.minimum(p, q).sum(1), (p * (log_p - log_q)).sum(1)
    share = scale * torch.exp(-decay * overlap.detach().mean())
    return {
        "soft_ce": -(p * log_q).sum(1),
        "kl": kl,
        "reverse_kl": (q * (log_q - log_p)).sum(1),
        "ce": -log_q[:, label],
        "tv": 1 - overlap,
        "lk_alpha": -overlap.log(),
        "lk_lambda": share * kl + (1 - share) * (1 - overlap),
    }[kind]


def dense_hidden(
    w: Weights, g: Eagle3Geometry, text: Text, embedding: Tensor, *, depths: int, widen: int = 0
) -> list[Tensor]:
    """Per depth ``[T, H]`` after the final norm, of a rollout from every row; tokens behind the text are 0."""
    count = len(text.ids)
    padded = torch.cat((text.ids, torch.zeros(depths + 1, dtype=torch.int64)))
    state = torch.stack([_fuse(w, g, row) for row in text.features])
    causal = torch.ones(count, count, dtype=torch.bool).tril(widen)
    seen: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in range(g.num_layers)]
    mask, found = causal, []
    for depth in range(depths):
        embeds = embedding.double()[padded[torch.arange(count) + 1 + depth]]
        for layer in range(g.num_layers):
            query, key, value, prefix = _projected(w, g, layer, state, embeds, torch.arange(count) + depth)
            seen[layer][0].append(key)
            seen[layer][1].append(value)
            mixed = attend(query, torch.cat(seen[layer][0]), torch.cat(seen[layer][1]), mask, g)
            state = after(w, g, prefix, state, mixed)
        hidden = norm(state, w["norm.weight"], g)
        found.append(hidden)
        state = hidden if g.norm_output else state
        mask = torch.cat((mask, torch.eye(count, dtype=torch.bool)), dim=1)
    return found


def _fuse(w: Weights, g: Eagle3Geometry, features: Tensor) -> Tensor:
    layers = list(features.double())
    if g.fc_norm:
        layers = [norm(x, w[f"fc_norm.{k}.weight"], g) for k, x in enumerate(layers)]
    return w["fc.weight"] @ torch.cat(layers)


def _projected(
    w: Weights, g: Eagle3Geometry, layer: int, state: Tensor, embeds: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor, Tensor, str]:
    prefix = "midlayer." if layer == 0 else f"layers.{layer}."
    read = norm(state, w[prefix + "hidden_norm.weight"], g)
    if layer == 0:
        read = torch.cat((norm(embeds, w[prefix + "input_layernorm.weight"], g), read), dim=1)
    query, key, value = (
        (read @ w[f"{prefix}self_attn.{name}_proj.weight"].T).unflatten(1, (-1, g.head_dim)) for name in "qkv"
    )
    return rope(query, positions, g), rope(key, positions, g), value, prefix


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, g: Eagle3Geometry) -> Tensor:
    shared = g.num_heads // g.num_kv_heads
    scores = torch.einsum("qad,kad->aqk", query, key.repeat_interleave(shared, dim=1)) / g.head_dim**0.5
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return torch.einsum("aqk,kad->qad", weights, value.repeat_interleave(shared, dim=1)).flatten(1)


def after(w: Weights, g: Eagle3Geometry, prefix: str, state: Tensor, mixed: Tensor) -> Tensor:
    x = state + mixed @ w[prefix + "self_attn.o_proj.weight"].T
    y = norm(x, w[prefix + "post_attention_layernorm.weight"], g)
    gate = y @ w[prefix + "mlp.gate_proj.weight"].T
    return x + (gate * gate.sigmoid() * (y @ w[prefix + "mlp.up_proj.weight"].T)) @ w[prefix + "mlp.down_proj.weight"].T


def norm(x: Tensor, weight: Tensor, g: Eagle3Geometry) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + g.rms_norm_eps).sqrt() * weight


def rope(x: Tensor, positions: Tensor, g: Eagle3Geometry) -> Tensor:
    half = g.head_dim // 2
    rates = float(g.rope_parameters["rope_theta"]) ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = (positions[:, None].double() * rates)[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)
