"""The training forward of a drafter that feeds itself: depth 0 over what the target gives, then chains of own states.

At depth i the row of a start sees the context rows up to its own and its own chain of depths 1..i, nothing of another
start. States are handed on with their gradient.

Legend: N starts, S context rows, X tokens, L depths, K features of a row, H hidden size, A query heads, G key heads,
d head size, W = (A + 2 G) d, Y width of what is known of a token before any state (H or W).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from specflow.drafters.dflash.attention import Span, block_attention
from specflow.drafters.layers import Heads, StateLayer
from specflow.drafters.rollouts import Rollouts
from specflow.drafters.rope import cos_sin, rotate

Embed = Callable[[Tensor], Tensor]
Pair = tuple[Tensor, Tensor]
"""Keys, rotated, and values: ``[rows, G, d]`` each."""


class StateNetwork(Protocol):
    """A network of layers over its own state."""

    frequencies: Tensor
    rope_factor: float

    @property
    def geometry(self) -> Heads: ...
    def all_layers(self) -> Sequence[StateLayer]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Rows that are computed together: where they are, and what of the context each sees."""

    spans: Sequence[Span]
    visible_N: Tensor
    positions_N: Tensor


class Rollout(ABC):
    """One forward pass: the weights in the form it needs, and keys and values of the context of every layer."""

    def __init__(self, network: StateNetwork) -> None:
        self._rotary, self._layers = network, network.all_layers()
        g = network.geometry
        self._heads, self._groups, self._size = g.num_heads, g.num_kv_heads, g.head_dim
        self._maps = [layer.self_attn.qkv() for layer in self._layers]
        """Of the state, ``[W, H]`` each."""
        self._context: list[Pair] = []

    @abstractmethod
    def read_tokens(self, embeds_XH: Tensor) -> Tensor:
        """``[X, Y]``: what tokens add, the same at every depth."""

    @abstractmethod
    def first_state(self, features_SKH: Tensor) -> Tensor:
        """``[S, H]``, from what the target gives."""

    @abstractmethod
    def enter(self, state_NH: Tensor, tokens_NY: Tensor) -> tuple[Tensor, Tensor | None]:
        """``[N, H]`` what the first layer gets; ``[N, W]`` what is added to its query, key and value, none: nothing."""

    @abstractmethod
    def finish(self, state_NH: Tensor) -> tuple[Tensor, Tensor]:
        """What the head reads, and the state that goes on."""

    def begin(
        self, features_SKH: Tensor, tokens_SY: Tensor, every: Places, starts: tuple[Tensor, Places] | None = None
    ) -> Tensor:
        """Depth 0: the context of every layer; ``[N, H]`` states of the starts, none: ``[S, H]`` of every row."""
        state, added = self.enter(self.first_state(features_SKH), tokens_SY)
        for index, layer in enumerate(self._layers):
            normed, tokens = layer.normed(state), added if index == 0 else None
            cut = self._heads * self._size
            pair = self._mapped(normed, tokens, index, slice(cut, None))
            key, value = pair.view(-1, 2 * self._groups, self._size).chunk(2, dim=1)
            self._context.append((rotate(key, *self._turns(every.positions_N)), value))
            places = every
            if starts is not None and index == len(self._layers) - 1:  # the others serve as keys and values only
                rows_N, places = starts
                state, normed = state[rows_N], normed[rows_N]
                tokens = None if tokens is None else tokens[rows_N]
            query = self._mapped(normed, tokens, index, slice(cut)).view(-1, self._heads, self._size)
            state = self._attended(layer, index, state, query, (), places)
        return state

    def advance(self, state_NH: Tensor, tokens_NY: Tensor, places: Places, chains: Sequence[list[Pair]]) -> Tensor:
        """``[N, H]`` states one depth further; keys and values of each layer join its list in ``chains``."""
        state_NH, added = self.enter(state_NH, tokens_NY)
        for index, layer in enumerate(self._layers):
            tokens = added if index == 0 else None
            both = self._mapped(layer.normed(state_NH), tokens, index, slice(None))
            parts = torch.split(both.view(both.shape[0], -1, self._size), [self._heads, self._groups, self._groups], 1)
            query, key, value = parts
            chains[index].append((rotate(key, *self._turns(places.positions_N)), value))
            state_NH = self._attended(layer, index, state_NH, query, chains[index], places)
        return state_NH

    def new_chains(self) -> list[list[Pair]]:
        return [[] for _ in self._layers]

    def _mapped(self, normed: Tensor, tokens: Tensor | None, index: int, rows: slice) -> Tensor:
        out = F.linear(normed, self._maps[index][rows])
        return out if tokens is None else out + tokens[:, rows]

    def _turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return cos_sin(positions, self._rotary.frequencies, self._rotary.rope_factor)

    def _attended(
        self, layer: StateLayer, index: int, state: Tensor, query_NAd: Tensor, chain: Sequence[Pair], places: Places
    ) -> Tensor:
        key_SGd, value_SGd = self._context[index]
        none = key_SGd.new_empty(query_NAd.shape[0], 0, self._groups, self._size)
        mixed = block_attention(
            rotate(query_NAd, *self._turns(places.positions_N)).unsqueeze(1),
            torch.stack([key for key, _ in chain], dim=1) if chain else none,
            torch.stack([value for _, value in chain], dim=1) if chain else none,
            key_SGd,
            value_SGd,
            spans=places.spans,
            visible_N=places.visible_N,
        )
        return layer.after_attention(state, mixed.squeeze(1))


def rolled_out(pass_: Rollout, rollouts: Rollouts, embed: Embed, *, noise_SKH: Tensor | None = None) -> Tensor:
    """``[L, N, H]``: what the head reads at every depth of every chain, tokens taken from the text.

    ``noise_SKH``: added to the features.
    """
    tokens_XY = pass_.read_tokens(embed(rollouts.token_ids_X).float())
    own = [Span(context=span.context, blocks=span.context) for span in rollouts.spans]
    every = Places(spans=own, visible_N=rollouts.positions_S + 1, positions_N=rollouts.positions_S)
    starts_N, visible_N = rollouts.starts_N, rollouts.visible_N
    first = Places(spans=rollouts.spans, visible_N=visible_N, positions_N=visible_N - 1)
    features_SKH = rollouts.features_SKH
    if noise_SKH is not None:
        features_SKH += noise_SKH
    state_NH = pass_.begin(features_SKH, tokens_XY[rollouts.tokens_S], every, (starts_N, first))
    hidden, state_NH = pass_.finish(state_NH)
    rows, chains = [hidden], pass_.new_chains()
    for depth in range(1, rollouts.depths):
        places = Places(spans=rollouts.spans, visible_N=visible_N, positions_N=first.positions_N + depth)
        tokens_NY = tokens_XY[rollouts.tokens_S[starts_N] + depth]
        state_NH = pass_.advance(state_NH, tokens_NY, places, chains)
        hidden, state_NH = pass_.finish(state_NH)
        rows.append(hidden)
    return torch.stack(rows)
