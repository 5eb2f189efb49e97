"""A drafter that feeds itself, at decoding time: keys and values of the committed rows, and a tree of drafted ones.

Row t pairs what the target gives of position t with the token after it. The last committed row, which holds the anchor,
is node 0; a drafted token is a row of its own, computed from the state of its parent. A chain is a tree of one branch.

Legend: T committed rows, K features of a row, H hidden size, m proposals, n rows, b nodes, G key heads, d head size,
D draft vocabulary, V the target's.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from specflow.drafters.base import Committed, Draw, Proposal
from specflow.drafters.frozen_layer import FrozenLayer
from specflow.drafters.layers import Heads
from specflow.drafters.rope import cos_sin
from specflow.drafters.state_tree import Tree

ROOM = 64
"""Nodes that there is room for at first."""


class Sizes(Heads, Protocol):
    @property
    def num_layers(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...


class StateProposer(ABC):
    """Proposes a chain or a tree for one request; see ``specflow.drafters.base.Proposer``.

    Weights are frozen in the given precision; the residual stream, norms, rotation and softmax are fp32. Keys and
    values of drafted nodes are written behind the committed ones and overwritten by the next ``extend``.
    """

    layer_ids: tuple[int, ...]

    def __init__(
        self,
        sizes: Sizes,
        layers: Sequence[FrozenLayer],
        *,
        embed: Callable[[Tensor], Tensor],
        draft_ids_D: Tensor | None,
        frequencies: Tensor,
        rope_factor: float,
    ) -> None:
        self._sizes, self._layers, self._embed = sizes, layers, embed
        self._ids_D = None if draft_ids_D is None else draft_ids_D.clone()
        self._frequencies, self._rope_factor = frequencies, rope_factor
        self.reset(0)

    @abstractmethod
    def score(self, hidden: Tensor) -> Tensor:
        """``[..., D]`` logits of the draft vocabulary."""

    @abstractmethod
    def first_state(self, rows: Committed) -> Tensor:
        """``[T, H]``, from what the target gives; ``ValueError`` if that is not what the drafter reads."""

    def enter(self, state_nH: Tensor, embeds_nH: Tensor) -> Tensor:
        """``[n, H]``: what the first layer gets."""
        return state_nH

    def finish(self, state: Tensor) -> Tensor:
        """What the head reads."""
        return state

    def carried(self, state: Tensor) -> Tensor:
        """What goes on to the next step."""
        return state

    @property
    def num_proposals(self) -> int:
        return self._sizes.steps

    @property
    def length(self) -> int:
        """Committed positions."""
        return self._length

    def fork(self) -> Self:
        other = copy.copy(self)  # the weights are shared
        other.reset(0)
        return other

    @torch.no_grad()
    def reset(self, capacity: int) -> None:
        g = self._sizes
        self._length, self._capacity = 0, capacity
        self._anchor: int | None = None
        shape = (g.num_layers, g.num_kv_heads, capacity + ROOM, g.head_dim)
        self._keys, self._values = torch.zeros(shape), torch.zeros(shape)
        self._cos, self._sin = cos_sin(torch.arange(shape[2]), self._frequencies, self._rope_factor)
        self._last_H = torch.zeros(g.hidden_size)
        self._tree = Tree(self._last_H)

    @torch.no_grad()
    def extend(self, rows: Committed) -> None:
        """Rows of just committed positions, from what the target gives; drafted nodes are forgotten.

        Raises ``ValueError`` if the request outgrows the reserved capacity or the features are not the drafter's.
        """
        new = rows.next_ids_T.numel()
        end = self._length + new
        if end > self._capacity:
            raise ValueError(
                f"extend: {new} rows; expected at most {self._capacity - self._length} more rows (capacity "
                f"{self._capacity})"
            )
        if not new:
            return
        here = slice(self._length, end)
        mask = None
        if new > 1:
            mask = torch.arange(end) <= torch.arange(here.start, end).unsqueeze(1)
        state = self._run(self.first_state(rows), rows.next_ids_T, here, here, mask, last_only=True)
        self._length, self._anchor = end, int(rows.next_ids_T[-1])
        self._last_H = state[-1]
        self._tree = Tree(self.carried(self._last_H))

    def propose(self, anchor: int) -> Tensor:
        """``[m]`` int64 proposals; ties go to the lowest id."""
        return self._chain(anchor, lambda hidden_H, index: int(self._ids(self.score(hidden_H).argmax())))[0]

    def sample(self, anchor: int, draw: Draw) -> Proposal:
        """``[m]`` int64 proposals, each drawn given those before it."""
        drawn: list[Tensor] = []

        def choose(hidden_H: Tensor, index: int) -> int:
            token, q_V = draw(self._over_target(self.score(hidden_H)))
            drawn.append(q_V)
            return token

        tokens_m = self._chain(anchor, choose)[0]
        return Proposal(tokens_m=tokens_m, q_mV=torch.stack(drawn))

    def hidden(self, anchor: int, text_m: Tensor | None = None) -> Tensor:
        """``[m, H]`` that the head reads; rows behind the end of the text read token 0."""
        text = [] if text_m is None else text_m.tolist()
        return self._chain(anchor, lambda hidden_H, index: text[index] if index < len(text) else 0)[1]

    @torch.no_grad()
    def begin_tree(self, anchor: int) -> Tensor:
        """``[V]`` log q of the token after ``anchor``, which is node 0; drafted nodes are forgotten."""
        return self._log_q(self._root(anchor))

    @torch.no_grad()
    def expand(self, tokens_b: Tensor, parents_b: Tensor) -> Tensor:
        """Add nodes, numbered on from the last one; ``[b, V]`` log q of the token after each.

        A node sees the committed rows, its ancestors and itself.
        """
        return self._log_q(self._add(tokens_b, parents_b))

    @torch.no_grad()
    def _chain(self, anchor: int, choose: Callable[[Tensor, int], int]) -> tuple[Tensor, Tensor]:
        """Tokens as ``choose(hidden_H, index)`` says, and the hidden rows they were chosen by."""
        rows, tokens = [self._root(anchor)], list[int]()
        for index in range(self.num_proposals):
            tokens.append(choose(rows[index], index))
            if index + 1 < self.num_proposals:
                rows.append(self._add(torch.tensor(tokens[-1:]), torch.tensor([index]))[0])
        return torch.tensor(tokens), torch.stack(rows)

    def _root(self, anchor: int) -> Tensor:
        """``[H]``: node 0, as the head reads it."""
        if self._anchor is not None and anchor != self._anchor:
            raise ValueError(f"expected the anchor {self._anchor} that the last committed row names, found {anchor}")
        self._tree.clear()
        return self.finish(self._last_H)

    def _add(self, tokens_b: Tensor, parents_b: Tensor) -> Tensor:
        """``[b, H]`` of new nodes, as the head reads them."""
        first = self._length + self._tree.nodes
        end = first + tokens_b.numel()
        if end > self._keys.shape[2]:
            self._grow(end)
        position_b = self._length - 1 + self._tree.depth_of(parents_b) + 1
        state_bH, seen_bn = self._tree.add(parents_b)
        mask = None if seen_bn is None else F.pad(seen_bn, (self._length, 0), value=True)
        state_bH = self._run(state_bH, tokens_b, slice(first, end), position_b, mask, last_only=False)
        self._tree.keep(self.carried(state_bH))
        return self.finish(state_bH)

    def _run(
        self,
        state: Tensor,
        tokens: Tensor,
        slots: slice,
        positions: slice | Tensor,
        mask: Tensor | None,
        *,
        last_only: bool,
    ) -> Tensor:
        """States after all layers; keys and values go to ``slots``, everything up to there can be seen.

        ``last_only``: the last row alone is wanted, the others serve as keys and values.
        """
        embeds, cos, sin = self._embed(tokens).float(), self._cos[positions], self._sin[positions]
        state = self.enter(state, embeds)
        for index, layer in enumerate(self._layers):
            keys, values = self._keys[index, :, : slots.stop], self._values[index, :, : slots.stop]
            rows = 1 if last_only and index == len(self._layers) - 1 else state.shape[0]
            state = layer(state, embeds, keys, values, cos, sin, mask=mask, rows=rows)
        return state

    def _grow(self, least: int) -> None:
        more = max(least - self._keys.shape[2], self._keys.shape[2] // 2)
        self._keys, self._values = (F.pad(t, (0, 0, 0, more)) for t in (self._keys, self._values))
        self._cos, self._sin = cos_sin(torch.arange(self._keys.shape[2]), self._frequencies, self._rope_factor)

    def _ids(self, draft: Tensor) -> Tensor:
        return draft if self._ids_D is None else self._ids_D[draft]

    def _log_q(self, hidden: Tensor) -> Tensor:
        return self._over_target(self.score(hidden).float().log_softmax(dim=-1))

    def _over_target(self, values: Tensor) -> Tensor:
        """``[..., V]`` of ``[..., D]``: minus infinity where nothing can be proposed."""
        if self._ids_D is None:
            return values
        out = values.new_full((*values.shape[:-1], self._sizes.vocab_size), float("-inf"))
        out[..., self._ids_D] = values
        return out
