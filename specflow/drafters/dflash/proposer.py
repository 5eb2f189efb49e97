"""DFlash at decoding time: one request, its context keys and values, one forward pass per round.

Requests that draft at the same time share the pass (:meth:`DFlashProposer.look_ahead`).

Legend: T committed rows, K captured layers, H hidden size, L draft layers, B rows of a block, m proposals,
G key heads, d head size, R requests, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from specflow.drafters.base import Committed, Draw, Proposal, draw_rows
from specflow.drafters.dflash.chunked_attention import Rule
from specflow.drafters.dflash.frozen_layer import FrozenLayer, Pair, scale_of
from specflow.drafters.dflash.network import DFlashNetwork, Layer
from specflow.drafters.linear import frozen_linear
from specflow.drafters.rope import cos_sin, rotate
from specflow.drafters.row_trees import RowTree


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ahead:
    """What a shared pass found for the block after ``anchor``."""

    anchor: int
    hidden_mH: Tensor
    logits_mV: Tensor
    """By the target's head."""


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
        self._hidden_norm = scale_of(network.hidden_norm.weight)
        self._norm = scale_of(network.norm.weight)
        self._context_kv = frozen_linear(
            torch.cat([w for layer in layers for w in (layer.self_attn.k_proj.weight, layer.self_attn.v_proj.weight)]),
            precision=precision,
        )
        self._context_k_norm = torch.stack([scale_of(layer.self_attn.k_norm.weight) for layer in layers]).unsqueeze(1)
        self._layers = [self._frozen(layer) for layer in layers]
        self._frequencies, self._rope_factor = network.frequencies, network.rope_factor
        mask = embed(torch.tensor([geometry.mask_token_id])).detach().float()
        self._block_BH = mask.expand(geometry.block_size, -1).clone()
        self._length = 0
        self.reset(0)

    def _frozen(self, layer: Layer) -> FrozenLayer:
        return FrozenLayer(layer, self, precision=self.precision)

    @property
    def num_proposals(self) -> int:
        return self.geometry.num_proposals

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
        self._ahead: _Ahead | None = None
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
        self._ahead = None

    @torch.no_grad()
    def propose(self, anchor: int) -> Tensor:
        """``[B - 1]`` int64 proposals; ties go to the lowest id."""
        return self.logits(anchor).argmax(dim=-1)

    @torch.no_grad()
    def sample(self, anchor: int, draw: Draw) -> Proposal:
        """``[B - 1]`` int64 proposals, each drawn from its row; rows do not see each other's tokens."""
        return draw_rows(self.logits(anchor), draw)

    @torch.no_grad()
    def begin_tree(self, anchor: int) -> Tensor:
        """See ``specflow.drafters.base.Expands``; a node's score is the product of its rows' probabilities."""
        self._tree = RowTree(self.logits(anchor))
        return self._tree.first()

    def expand(self, tokens_b: Tensor, parents_b: Tensor) -> Tensor:
        return self._tree.expand(parents_b)

    @torch.no_grad()
    def logits(self, anchor: int) -> Tensor:
        """``[B - 1, V]`` logits of the rows after ``anchor``."""
        return self.score(self.hidden(anchor))

    def score(self, hidden_mH: Tensor) -> Tensor:
        """``[m, V]`` logits by the target's head."""
        if self._ahead is not None and hidden_mH is self._ahead.hidden_mH:
            return self._ahead.logits_mV
        return self._by_head(hidden_mH)

    @torch.no_grad()
    def hidden(self, anchor: int, text_m: Tensor | None = None) -> Tensor:
        """``[m, H]`` after the final norm; leaves the committed context as it was. Rows do not read ``text_m``."""
        if self._ahead is not None and self._ahead.anchor == anchor:
            return self._ahead.hidden_mH
        return self._pass([self], [anchor])[0]

    @classmethod
    @torch.no_grad()
    def look_ahead(cls, proposers: Sequence[Self], anchors: Sequence[int]) -> None:
        """See ``specflow.drafters.base.LooksAhead``: one pass over all blocks, one product with the head."""
        first = proposers[0]
        hidden_RmH = first._pass(proposers, anchors)
        logits_RmV = first._by_head(hidden_RmH.flatten(0, 1)).view(*hidden_RmH.shape[:2], -1)
        for own, anchor, hidden_mH, logits_mV in zip(proposers, anchors, hidden_RmH, logits_RmV, strict=True):
            own._ahead = _Ahead(anchor=anchor, hidden_mH=hidden_mH, logits_mV=logits_mV)

    def _by_head(self, hidden: Tensor) -> Tensor:
        return self._head(hidden.to(torch.bfloat16) if self.precision == "bf16" else hidden)

    def _pass(self, proposers: Sequence[Self], anchors: Sequence[int]) -> Tensor:
        """``[R, m, H]`` of the blocks after the anchors, each behind its own request's context."""
        for own, embedded_H in zip(proposers, self._embed(torch.tensor(anchors)).float(), strict=True):
            own._block_BH[0] = embedded_H
        x = _joined([own._block_BH for own in proposers])
        cos, sin = (_joined(rows) for rows in zip(*(own._turns() for own in proposers), strict=True))
        for index, layer in enumerate(self._layers):
            is_last = index == len(self._layers) - 1
            seen = [own._seen(index, layer.rule) for own in proposers]
            x = layer(x, seen, cos, sin, first_row=self.geometry.first_row if is_last else 0)
        return (self.normalise(x) * self._norm).view(len(proposers), -1, x.shape[1])

    def _turns(self) -> tuple[Tensor, Tensor]:
        rows = slice(self._length, self._length + self.geometry.block_size)
        return self._cos[rows], self._sin[rows]

    def _seen(self, layer: int, rule: Rule) -> Pair:
        """Keys and values that the block sees, its own last; from where ``rule`` lets the anchor's row look back to."""
        seen = slice(rule.reach(self._length), self._length + self.geometry.block_size)
        return self._keys[layer, :, seen], self._values[layer, :, seen]

    def normalise(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._eps)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
