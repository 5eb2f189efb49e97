"""A layer over a drafter's own state at decoding time.

Legend: n rows, H hidden size, A query heads, G key heads, S keys, d head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specflow.drafters.layers import Heads, RMSNorm, StateLayer
from specflow.drafters.linear import Linear, frozen_linear
from specflow.drafters.rope import rotate


class FrozenLayer:
    """``state_norm``: of the state, none: it is read as it is. ``embed_norm``: of the token's embedding, which is then
    read beside the state, first."""

    def __init__(
        self,
        layer: StateLayer,
        sizes: Heads,
        *,
        precision: str,
        state_norm: RMSNorm | None,
        embed_norm: RMSNorm | None = None,
    ) -> None:
        mlp = layer.mlp
        self._heads, self._groups, self._size = sizes.num_heads, sizes.num_kv_heads, sizes.head_dim
        self._eps = layer.post_attention_layernorm.eps
        self._qkv = frozen_linear(layer.self_attn.qkv(), precision=precision)
        self._o: Linear = frozen_linear(layer.self_attn.o_proj.weight, precision=precision)
        self._gate_up = frozen_linear(torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)), precision=precision)
        self._down: Linear = frozen_linear(mlp.down_proj.weight, precision=precision)
        self._embed_norm = None if embed_norm is None else frozen_scale(embed_norm)
        self._state_norm = None if state_norm is None else frozen_scale(state_norm)
        self._mlp_norm = frozen_scale(layer.post_attention_layernorm)

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
        read = state_nH if self._state_norm is None else self._normalise(state_nH) * self._state_norm
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


def frozen_scale(norm: RMSNorm) -> Tensor:
    """The norm's scale, as it is now."""
    return norm.weight.detach().float().clone()
