"""A draft layer at decoding time. Legend: n rows, H hidden size, A query heads, G key heads, S keys, d head size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specflow.drafters.eagle3.geometry import Eagle3Geometry
from specflow.drafters.eagle3.network import Layer
from specflow.drafters.linear import Linear, frozen_linear
from specflow.drafters.rope import rotate


class FrozenLayer:
    def __init__(self, layer: Layer, geometry: Eagle3Geometry, *, precision: str) -> None:
        g, mlp = geometry, layer.mlp
        self._heads, self._groups, self._size, self._eps = g.num_heads, g.num_kv_heads, g.head_dim, g.rms_norm_eps
        self._qkv = frozen_linear(layer.self_attn.qkv(), precision=precision)
        self._o: Linear = frozen_linear(layer.self_attn.o_proj.weight, precision=precision)
        self._gate_up = frozen_linear(torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)), precision=precision)
        self._down: Linear = frozen_linear(mlp.down_proj.weight, precision=precision)
        self._embed_norm = _scale(layer.input_layernorm.weight) if hasattr(layer, "input_layernorm") else None
        self._state_norm = _scale(layer.hidden_norm.weight)
        self._mlp_norm = _scale(layer.post_attention_layernorm.weight)

    def __call__(
        self,
        state_nH: Tensor,
        embeds_nH: Tensor,
        keys_GSd: Tensor,
        values_GSd: Tensor,
        cos: Tensor,
        sin: Tensor,
        *,
        mask: Tensor | None,
        rows: int,
    ) -> Tensor:
        """The last ``rows`` rows after this layer; keys and values of all n go into the last n of the buffers.

        ``mask``: ``[n, S]``, what each row sees; none: everything.
        """
        count, pairs = state_nH.shape[0], self._heads + self._groups
        read = self._normalise(state_nH) * self._state_norm
        if self._embed_norm is not None:
            read = torch.cat((self._normalise(embeds_nH) * self._embed_norm, read), dim=1)
        qkv = self._qkv(read).view(count, pairs + self._groups, self._size)
        qk = rotate(qkv[:, :pairs], cos, sin)
        keys_GSd[:, -count:] = qk[:, self._heads :].transpose(0, 1)
        values_GSd[:, -count:] = qkv[:, pairs:].transpose(0, 1)
        mixed = self._attend(qk[-rows:, : self._heads], keys_GSd, values_GSd, None if mask is None else mask[-rows:])
        x = state_nH[-rows:] + self._o(mixed)
        gate, up = self._gate_up(self._normalise(x) * self._mlp_norm).chunk(2, dim=-1)
        out: Tensor = x + self._down(F.silu(gate) * up)
        return out

    def _attend(self, query_nAd: Tensor, keys_GSd: Tensor, values_GSd: Tensor, mask: Tensor | None) -> Tensor:
        rows = query_nAd.shape[0]
        if rows > 1:
            mixed: Tensor = F.scaled_dot_product_attention(
                query_nAd.transpose(0, 1).unsqueeze(0),
                keys_GSd.unsqueeze(0),
                values_GSd.unsqueeze(0),
                attn_mask=mask,
                enable_gqa=True,
            )
            return mixed.squeeze(0).transpose(0, 1).reshape(rows, -1)
        query = query_nAd.reshape(self._groups, -1, self._size) * self._size**-0.5
        scores = query @ keys_GSd.transpose(1, 2)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        alone: Tensor = (scores.softmax(dim=-1) @ values_GSd).reshape(rows, -1)
        return alone

    def _normalise(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._eps)


def _scale(weight: Tensor) -> Tensor:
    return weight.detach().float().clone()
