"""The EAGLE training forward: token and state are joined by ``fc`` before the first layer, at every depth.

Legend: S context rows, X tokens, N rows, H hidden size.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from specflow.drafters.eagle.network import EagleNetwork
from specflow.drafters.rollout_forward import Rollout
from specflow.drafters.training import Source


class EagleRollout(Rollout):
    """See ``specflow.drafters.rollout_forward``; what is known of a token is its share of what ``fc`` gives."""

    def __init__(self, network: EagleNetwork) -> None:
        super().__init__(network)
        self._bias_H = network.fc.bias
        self._token_HH, self._state_HH = torch.split(network.fc.weight, network.geometry.hidden_size, dim=1)

    def read_tokens(self, embeds_XH: Tensor) -> Tensor:
        return F.linear(embeds_XH, self._token_HH, self._bias_H)

    def first_state(self, features_SKH: Tensor) -> Tensor:
        return features_SKH.squeeze(1)

    def enter(self, state_NH: Tensor, tokens_NY: Tensor) -> tuple[Tensor, Tensor | None]:
        joined = F.linear(state_NH, self._state_HH) + tokens_NY
        return joined.to(state_NH.dtype), None  # of the residual stream, also under autocast

    def finish(self, state_NH: Tensor) -> tuple[Tensor, Tensor]:
        return state_NH, state_NH


def with_last_hidden(source: Source) -> Source:
    """The document with the target's last hidden states as its one feature, ``[T, 1, H]``.

    Raises ``ValueError`` where there are none.
    """
    return replace(source, features_TKH=as_feature(source.last_hidden_TH))


def as_feature(last_hidden_TH: Tensor | None) -> Tensor:
    """``[T, 1, H]``; ``ValueError`` where there are none."""
    if last_hidden_TH is None:
        raise ValueError("expected the target's last hidden states, found none")
    return last_hidden_TH.unsqueeze(1)
