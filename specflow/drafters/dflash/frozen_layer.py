"""A draft layer at decoding time, over the blocks of one request or of several.

Legend: n rows of all requests' blocks, H hidden size, R requests, B rows of a block, A query heads, G key heads,
S context rows and the block, d head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from specflow.drafters.dflash.chunked_attention import EVERYTHING
from specflow.drafters.dflash.geometry import DFlashGeometry
from specflow.drafters.dflash.network import Layer
from specflow.drafters.linear import Linear, frozen_linear
from specflow.drafters.rope import rotate

Pair = tuple[Tensor, Tensor]
"""Keys and values of a request, ``[G, S, d]`` each."""


class Owner(Protocol):
    """What a layer needs of the proposer it belongs to."""

    geometry: DFlashGeometry

    def normalise(self, x: Tensor) -> Tensor: ...


class FrozenLayer:
    def __init__(self, layer: Layer, owner: Owner, *, precision: str) -> None:
        g, attention, mlp = owner.geometry, layer.self_attn, layer.mlp
        self.rule = layer.rule
        self._normalise = owner.normalise
        self._heads, self._groups, self._size = g.num_heads, g.num_kv_heads, g.head_dim
        fused = torch.cat((attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight))
        self._qkv = frozen_linear(fused, precision=precision)
        self._o: Linear = frozen_linear(attention.o_proj.weight, precision=precision)
        self._gate_up = frozen_linear(torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)), precision=precision)
        self._down: Linear = frozen_linear(mlp.down_proj.weight, precision=precision)
        self._input_norm = scale_of(layer.input_layernorm.weight)
        self._mlp_norm = scale_of(layer.post_attention_layernorm.weight)
        # One scale per head row of the fused query and key; 1/sqrt(d) of the scores is folded into the query's.
        query_scale = scale_of(attention.q_norm.weight) * g.head_dim**-0.5
        key_scale = scale_of(attention.k_norm.weight)
        self._qk_scale = torch.cat((query_scale.expand(g.num_heads, -1), key_scale.expand(g.num_kv_heads, -1)))

    def __call__(self, x_nH: Tensor, seen: Sequence[Pair], cos: Tensor, sin: Tensor, *, first_row: int) -> Tensor:
        """Rows of every block from ``first_row`` on; its keys and values go into the last B rows of its buffers.

        ``seen``: of each request; the buffers begin where ``rule`` lets the anchor's row look back to.
        """
        mixed = self._mix(self._normalise(x_nH) * self._input_norm, seen, cos, sin)
        requests = len(seen)
        x = rows_from(x_nH, requests, first_row) + self._o(rows_from(mixed, requests, first_row))
        return x + self._mlp(self._normalise(x) * self._mlp_norm)

    def _mix(self, inputs_nH: Tensor, seen: Sequence[Pair], cos: Tensor, sin: Tensor) -> Tensor:
        """``[n, A * d]``: the values that each row's heads see, weighted."""
        split = self._heads + self._groups
        qkv = self._qkv(inputs_nH).view(len(inputs_nH), split + self._groups, self._size)
        qk = rotate(self._normalise(qkv[:, :split]) * self._qk_scale, cos, sin)
        blocks = zip(qk.chunk(len(seen)), qkv[:, split:].chunk(len(seen)), seen, strict=True)
        mixed = [self._attend(qk_B, value_B, *pair) for qk_B, value_B, pair in blocks]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def _attend(self, qk: Tensor, value_BGd: Tensor, keys_GSd: Tensor, values_GSd: Tensor) -> Tensor:
        """``[B, A * d]`` of one request."""
        rows = len(qk)
        keys_GSd[:, -rows:] = qk[:, self._heads :].transpose(0, 1)
        values_GSd[:, -rows:] = value_BGd.transpose(0, 1)
        query = qk[:, : self._heads].view(rows, self._groups, -1, self._size).transpose(0, 1)
        query = query.reshape(self._groups, -1, self._size)
        scores = query @ keys_GSd.transpose(1, 2)
        if self.rule != EVERYTHING:
            self.rule.hide(scores.view(self._groups, rows, -1, keys_GSd.shape[1]))
        mixed = scores.softmax(dim=-1) @ values_GSd
        return mixed.view(self._groups, rows, -1, self._size).transpose(0, 1).reshape(rows, -1)

    def _mlp(self, inputs_nH: Tensor) -> Tensor:
        gate, up = self._gate_up(inputs_nH).chunk(2, dim=-1)
        return self._down(F.silu(gate) * up)


def rows_from(x_nX: Tensor, requests: int, first_row: int) -> Tensor:
    """Rows of every request's block from ``first_row`` on."""
    return x_nX.view(requests, -1, x_nX.shape[1])[:, first_row:].flatten(0, 1) if first_row else x_nX


def scale_of(weight: Tensor) -> Tensor:
    return weight.detach().float().clone()
