"""The EAGLE-3 training forward: the first layer reads the token beside the state; the residual stream is the state.

Legend: S context rows, X tokens, N rows, K captured layers, L depths, H hidden size, W outputs of a layer's query, key
and value.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specflow.drafters.eagle3.network import Eagle3Network
from specflow.drafters.rollout_forward import Embed, Rollout, rolled_out
from specflow.drafters.rollouts import Rollouts


class Eagle3Rollout(Rollout):
    """See ``specflow.drafters.rollout_forward``; what is known of a token is its share of query, key and value."""

    def __init__(self, network: Eagle3Network) -> None:
        super().__init__(network)
        self._network = network
        self._token_WH, self._maps[0] = torch.split(self._maps[0], network.geometry.hidden_size, dim=1)

    def read_tokens(self, embeds_XH: Tensor) -> Tensor:
        return F.linear(self._network.midlayer.input_layernorm(embeds_XH), self._token_WH)

    def first_state(self, features_SKH: Tensor) -> Tensor:
        return self._network.fuse(features_SKH).to(features_SKH.dtype)  # of the residual stream, also under autocast

    def enter(self, state_NH: Tensor, tokens_NY: Tensor) -> tuple[Tensor, Tensor | None]:
        return state_NH, tokens_NY

    def finish(self, state_NH: Tensor) -> tuple[Tensor, Tensor]:
        hidden: Tensor = self._network.norm(state_NH)
        return hidden, hidden if self._network.geometry.norm_output else state_NH


def hidden_of(network: Eagle3Network, rollouts: Rollouts, embed: Embed) -> Tensor:
    """``[L, N, H]``: what the head reads at every depth of every chain, tokens taken from the text."""
    return rolled_out(Eagle3Rollout(network), rollouts, embed)
