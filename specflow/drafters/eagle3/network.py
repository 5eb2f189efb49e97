"""The EAGLE-3 draft network (arXiv 2503.01840): features of the target, fused, then decoder layers over own states.

The first layer reads the token's embedding beside the state, so its query, key and value maps are twice as wide; the
residual stream is the state alone. Parameter names are those that serving engines load.

Legend: T rows, K captured layers, H hidden size, D rows of the drafter's own head, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specflow.drafters.draft_vocabulary import checked_ids, ids_of, offsets_of
from specflow.drafters.eagle3.geometry import Eagle3Geometry
from specflow.drafters.layers import MLP, Attention, RMSNorm, StateLayer
from specflow.drafters.rope import inverse_frequencies


class Layer(StateLayer):
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

    def normed(self, state_TH: Tensor) -> Tensor:
        out: Tensor = self.hidden_norm(state_TH)
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
            ids_D = checked_ids(draft_ids, size=geometry.draft_vocab_size, total=geometry.vocab_size)
            t2d_V = torch.zeros(geometry.vocab_size, dtype=torch.bool)
            t2d_V[ids_D] = True
            self.register_buffer("d2t", offsets_of(ids_D))
            self.register_buffer("t2d", t2d_V)
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
        return ids_of(self.d2t) if self.has_own_head else None

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
