"""DFlash at decoding time: one request, its context keys and values, one forward pass per round.

Legend: T committed rows, K captured layers, H hidden size, L draft layers, B rows of a block, A query heads,
G key heads, d head size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from specflow.drafters.base import Committed, Draw, Proposal, draw_rows
from specflow.drafters.dflash.network import DFlashNetwork, Layer
from specflow.drafters.linear import Linear, frozen_linear
from specflow.drafters.rope import cos_sin, rotate


class DFlashProposer:
    """Proposes a block for one request; see ``specflow.drafters.base.Proposer``.

    Weights are fused (q, k and v of the block; k and v of the context for all layers) and frozen in the given
    precision; the residual stream, norms, rotation and softmax are fp32. Keys and values of the noise block are
    written behind the committed ones and overwritten by the next ``extend``, so nothing is copied per round.
    """

    def __init__(
        self,
        network: DFlashNetwork,
        *,
        embed: Callable[[Tensor], Tensor],
        head: Callable[[Tensor], Tensor],
        precision: str = "fp32",
    ) -> None:
        geometry = network.geometry
        self.geometry = geometry
        self.precision = precision
        self._embed, self._head = embed, head
        self._eps = geometry.rms_norm_eps
        layers = [layer for layer in network.layers if isinstance(layer, Layer)]
        self._fc = frozen_linear(network.fc.weight, precision=precision)
        self._hidden_norm = _scale(network.hidden_norm.weight)
        self._norm = _scale(network.norm.weight)
        self._context_kv = frozen_linear(
            torch.cat([w for layer in layers for w in (layer.self_attn.k_proj.weight, layer.self_attn.v_proj.weight)]),
            precision=precision,
        )
        self._context_k_norm = torch.stack([_scale(layer.self_attn.k_norm.weight) for layer in layers]).unsqueeze(1)
        self._layers = [_FrozenLayer(layer, self, precision=precision) for layer in layers]
        self._frequencies, self._rope_factor = network.frequencies, network.rope_factor
        mask = embed(torch.tensor([geometry.mask_token_id])).detach().float()
        self._block_BH = mask.expand(geometry.block_size, -1).clone()
        self._length = 0
        self.reset(0)

    @property
    def num_proposals(self) -> int:
        return self.geometry.block_size - 1

    @property
    def layer_ids(self) -> tuple[int, ...]:
        return self.geometry.layer_ids

    @property
    def length(self) -> int:
        """Committed positions."""
        return self._length

    def fork(self) -> Self:
        other = copy.copy(self)  # the weights are shared
        other._block_BH = self._block_BH.clone()
        other.reset(0)
        return other

    @torch.no_grad()
    def reset(self, capacity: int) -> None:
        g = self.geometry
        self._length = 0
        self._capacity = capacity
        shape = (g.num_layers, g.num_kv_heads, capacity + g.block_size, g.head_dim)
        self._keys, self._values = torch.zeros(shape), torch.zeros(shape)
        self._cos, self._sin = cos_sin(torch.arange(shape[2]), self._frequencies, self._rope_factor)

    @torch.no_grad()
    def extend(self, rows: Committed) -> None:
        """Project the features of just committed rows into every layer's context.

        Raises ``ValueError`` if the request outgrows the reserved capacity or K is not the drafter's.
        """
        features_TKH = rows.features_TKH
        new, count, _ = features_TKH.shape
        g, end = self.geometry, self._length + new
        if end > self._capacity or count != g.num_features:
            raise ValueError(
                f"extend: {new} rows of {count} features; expected {g.num_features} features and at most "
                f"{self._capacity - self._length} more rows (capacity {self._capacity})"
            )
        context_TH = self.normalise(self._fc(features_TKH.float().flatten(1))) * self._hidden_norm
        kv = self._context_kv(context_TH).view(new, g.num_layers, 2, g.num_kv_heads, g.head_dim)
        here = slice(self._length, end)
        key = self.normalise(kv[:, :, 0]) * self._context_k_norm
        key = rotate(key, self._cos[here].unsqueeze(1), self._sin[here].unsqueeze(1))
        self._keys[:, :, here] = key.permute(1, 2, 0, 3)
        self._values[:, :, here] = kv[:, :, 1].permute(1, 2, 0, 3)
        self._length = end

    @torch.no_grad()
    def propose(self, anchor: int) -> Tensor:
        """``[B - 1]`` int64 proposals; ties go to the lowest id."""
        return self.logits(anchor).argmax(dim=-1)

    @torch.no_grad()
    def sample(self, anchor: int, draw: Draw) -> Proposal:
        """``[B - 1]`` int64 proposals, each drawn from its row; rows do not see each other's tokens."""
        return draw_rows(self.logits(anchor), draw)

    @torch.no_grad()
    def logits(self, anchor: int) -> Tensor:
        """``[B - 1, V]`` logits of the rows after ``anchor``."""
        return self.score(self.hidden(anchor))

    def score(self, hidden_mH: Tensor) -> Tensor:
        """``[m, V]`` logits by the target's head."""
        return self._head(hidden_mH.to(torch.bfloat16) if self.precision == "bf16" else hidden_mH)

    @torch.no_grad()
    def hidden(self, anchor: int, text_m: Tensor | None = None) -> Tensor:
        """``[B - 1, H]`` after the final norm; leaves the committed context as it was. Rows do not read ``text_m``."""
        self._block_BH[0] = self._embed(torch.tensor([anchor]))[0].float()
        x = self._block_BH
        rows = slice(self._length, self._length + self.geometry.block_size)
        cos, sin = self._cos[rows], self._sin[rows]
        for index, layer in enumerate(self._layers):
            is_last = index == len(self._layers) - 1
            keys, values = self._keys[index, :, : rows.stop], self._values[index, :, : rows.stop]
            x = layer(x, keys, values, cos, sin, first_row=1 if is_last else 0)
        return self.normalise(x) * self._norm

    def normalise(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._eps)


class _FrozenLayer:
    def __init__(self, layer: Layer, owner: DFlashProposer, *, precision: str) -> None:
        g, attention, mlp = owner.geometry, layer.self_attn, layer.mlp
        self._normalise = owner.normalise
        self._heads, self._groups, self._size = g.num_heads, g.num_kv_heads, g.head_dim
        fused = torch.cat((attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight))
        self._qkv = frozen_linear(fused, precision=precision)
        self._o: Linear = frozen_linear(attention.o_proj.weight, precision=precision)
        self._gate_up = frozen_linear(torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)), precision=precision)
        self._down: Linear = frozen_linear(mlp.down_proj.weight, precision=precision)
        self._input_norm = _scale(layer.input_layernorm.weight)
        self._mlp_norm = _scale(layer.post_attention_layernorm.weight)
        # One scale per head row of the fused query and key; 1/sqrt(d) of the scores is folded into the query's.
        query_scale = _scale(attention.q_norm.weight) * g.head_dim**-0.5
        key_scale = _scale(attention.k_norm.weight)
        self._qk_scale = torch.cat((query_scale.expand(g.num_heads, -1), key_scale.expand(g.num_kv_heads, -1)))

    def __call__(
        self, x_BH: Tensor, keys_GSd: Tensor, values_GSd: Tensor, cos: Tensor, sin: Tensor, *, first_row: int
    ) -> Tensor:
        """Rows from ``first_row`` on; the block's keys and values go into the last B rows of the buffers."""
        rows, split = x_BH.shape[0], self._heads + self._groups
        qkv = self._qkv(self._normalise(x_BH) * self._input_norm).view(rows, split + self._groups, self._size)
        qk = rotate(self._normalise(qkv[:, :split]) * self._qk_scale, cos, sin)
        keys_GSd[:, -rows:] = qk[:, self._heads :].transpose(0, 1)
        values_GSd[:, -rows:] = qkv[:, split:].transpose(0, 1)
        query = qk[:, : self._heads].view(rows, self._groups, -1, self._size).transpose(0, 1)
        query = query.reshape(self._groups, -1, self._size)
        mixed = (query @ keys_GSd.transpose(1, 2)).softmax(dim=-1) @ values_GSd
        mixed = mixed.view(self._groups, rows, -1, self._size).transpose(0, 1).reshape(rows, -1)
        x = x_BH[first_row:] + self._o(mixed[first_row:])
        gate, up = self._gate_up(self._normalise(x) * self._mlp_norm).chunk(2, dim=-1)
        return x + self._down(F.silu(gate) * up)


def _scale(weight: Tensor) -> Tensor:
    return weight.detach().float().clone()
