"""The EAGLE-3 draft network (arXiv 2503.01840): features of the target, fused, then decoder layers over own states.

The first layer reads the token's embedding beside the state, so its query, key and value maps are twice as wide; the
residual stream is the state alone. Parameter names are those that serving engines load.

Legend: T rows, K captured layers, H hidden size, D rows of the drafter's own head, V vocabulary, G key heads, d head
size, W = (query heads + 2 G) d.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specflow.drafters.eagle3.geometry import Eagle3Geometry
from specflow.drafters.layers import MLP, RMSNorm
from specflow.drafters.rope import inverse_frequencies


class Attention(nn.Module):
    def __init__(self, geometry: Eagle3Geometry, *, width: int) -> None:
        super().__init__()
        queries, keys = (n * geometry.head_dim for n in (geometry.num_heads, geometry.num_kv_heads))
        self.q_proj = nn.Linear(width, queries, bias=False)
        self.k_proj = nn.Linear(width, keys, bias=False)
        self.v_proj = nn.Linear(width, keys, bias=False)
        self.o_proj = nn.Linear(queries, geometry.hidden_size, bias=False)

    def qkv(self) -> Tensor:
        """``[W, width]``: the three maps, one above the other."""
        return torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight))


class Layer(nn.Module):
    """``hidden_norm`` is the norm of the state; ``input_layernorm``, of the first layer only, that of the embedding."""

    def __init__(self, geometry: Eagle3Geometry, *, first: bool) -> None:
        super().__init__()
        hidden, eps = geometry.hidden_size, geometry.rms_norm_eps
        if first:
            self.input_layernorm = RMSNorm(hidden, eps)
        self.hidden_norm = RMSNorm(hidden, eps)
        self.self_attn = Attention(geometry, width=2 * hidden if first else hidden)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = MLP(geometry.hidden_size, geometry.intermediate_size)

    def after_attention(self, state_TH: Tensor, mixed_TX: Tensor) -> Tensor:
        x = state_TH + self.self_attn.o_proj(mixed_TX)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Eagle3Network(nn.Module):
    """Trainable part of an EAGLE-3 drafter; the embedding is the target's, and so is the head unless it has its own."""

    frequencies: Tensor
    d2t: Tensor
    """int64 ``[D]``: the target's id of draft token i is ``i + d2t[i]``. Only with a head of its own."""
    t2d: Tensor
    """bool ``[V]``: whether a token of the target can be proposed."""

    def __init__(self, geometry: Eagle3Geometry, *, draft_ids: Tensor | None = None) -> None:
        """``draft_ids``: int64 ``[D]``, increasing; none: the lowest, until buffers are loaded."""
        super().__init__()
        self.geometry = geometry
        hidden, eps = geometry.hidden_size, geometry.rms_norm_eps
        self.fc = nn.Linear(geometry.num_features * hidden, hidden, bias=False)
        if geometry.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(hidden, eps) for _ in geometry.layer_ids)
        self.midlayer = Layer(geometry, first=True)
        if geometry.num_layers > 1:
            self.layers = nn.ModuleDict({str(i): Layer(geometry, first=False) for i in range(1, geometry.num_layers)})
        self.norm = RMSNorm(hidden, eps)
        if geometry.draft_vocab_size is not None:
            self.lm_head = nn.Linear(hidden, geometry.draft_vocab_size, bias=False)
            self._register_vocabulary(geometry.draft_vocab_size, geometry.vocab_size, draft_ids)
        frequencies, self.rope_factor = inverse_frequencies(
            geometry.rope_parameters,
            head_dim=geometry.head_dim,
            max_position_embeddings=geometry.max_position_embeddings,
        )
        self.register_buffer("frequencies", frequencies, persistent=False)

    @property
    def has_own_head(self) -> bool:
        return self.geometry.draft_vocab_size is not None

    @property
    def draft_ids_D(self) -> Tensor | None:
        """Target ids in draft order, increasing; none: every token."""
        if not self.has_own_head:
            return None
        return self.d2t + torch.arange(self.d2t.numel(), device=self.d2t.device)

    def all_layers(self) -> list[Layer]:
        rest = [layer for layer in self.layers.values() if isinstance(layer, Layer)] if hasattr(self, "layers") else []
        return [self.midlayer, *rest]

    def fuse(self, features_TKH: Tensor) -> Tensor:
        """``[T, H]``: the first state of every row, from the target's features."""
        if self.geometry.fc_norm:
            parts = zip(self.fc_norm, features_TKH.unbind(1), strict=True)
            features_TKH = torch.stack([norm(layer_TH) for norm, layer_TH in parts], dim=1)
        out: Tensor = self.fc(features_TKH.flatten(1))
        return out

    def _register_vocabulary(self, size: int, total: int, draft_ids: Tensor | None) -> None:
        ids_D = torch.arange(size) if draft_ids is None else draft_ids.to(torch.int64)
        if ids_D.shape != (size,) or not bool((ids_D.diff() > 0).all()) or int(ids_D[-1]) >= total:
            raise ValueError(f"draft vocabulary: expected {size} increasing ids below {total}, found {ids_D.numel()}")
        t2d_V = torch.zeros(total, dtype=torch.bool)
        t2d_V[ids_D] = True
        self.register_buffer("d2t", ids_D - torch.arange(size))
        self.register_buffer("t2d", t2d_V)
