"""The EAGLE draft network (arXiv 2401.15077): token and hidden state joined, then decoder layers.

What comes out is the target's next hidden state as predicted, which the target's head reads as it is.
The first layer has no input norm and there is no final norm. Parameter names are those that serving engines load.

Legend: T rows, H hidden size, D tokens that can be proposed.
"""

from __future__ import annotations

from torch import Tensor, nn

from specflow.drafters.draft_vocabulary import checked_ids, ids_of, offsets_of
from specflow.drafters.eagle.geometry import EagleGeometry
from specflow.drafters.layers import MLP, Attention, RMSNorm, StateLayer
from specflow.drafters.rope import inverse_frequencies


class Layer(StateLayer):
    def __init__(self, geometry: EagleGeometry, *, first: bool) -> None:
        super().__init__()
        hidden, eps = geometry.hidden_size, geometry.rms_norm_eps
        self.input_layernorm = None if first else RMSNorm(hidden, eps)
        self.self_attn = Attention(geometry, width=hidden)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = MLP(hidden, geometry.intermediate_size)

    def normed(self, state_TH: Tensor) -> Tensor:
        return state_TH if self.input_layernorm is None else self.input_layernorm(state_TH)


class EagleNetwork(nn.Module):
    """Trainable part of an EAGLE drafter; embedding and head are the target's."""

    frequencies: Tensor
    d2t: Tensor
    """int64 ``[D]``: the target's id of draft token i is ``i + d2t[i]``. Only where not every token can be proposed."""

    def __init__(self, geometry: EagleGeometry, *, draft_ids: Tensor | None = None) -> None:
        """``draft_ids``: int64 ``[D]``, increasing; none: the lowest, until buffers are loaded."""
        super().__init__()
        self.geometry = geometry
        self.fc = nn.Linear(2 * geometry.hidden_size, geometry.hidden_size)
        self.layers = nn.ModuleList(Layer(geometry, first=index == 0) for index in range(geometry.num_layers))
        if geometry.draft_vocab_size is not None:
            ids_D = checked_ids(draft_ids, size=geometry.draft_vocab_size, total=geometry.vocab_size)
            self.register_buffer("d2t", offsets_of(ids_D))
        frequencies, self.rope_factor = inverse_frequencies(
            geometry.rope_parameters,
            head_dim=geometry.head_dim,
            max_position_embeddings=geometry.max_position_embeddings,
        )
        self.register_buffer("frequencies", frequencies, persistent=False)

    @property
    def draft_ids_D(self) -> Tensor | None:
        """Target ids in draft order, increasing; none: every token."""
        return None if self.geometry.draft_vocab_size is None else ids_of(self.d2t)

    def all_layers(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]
