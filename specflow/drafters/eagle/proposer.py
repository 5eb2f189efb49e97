"""EAGLE at decoding time: token and state are joined, and the head reads the state as it is (see ``state_proposer``).

Legend: T committed rows, H hidden size, n rows, D tokens that can be proposed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specflow.drafters.base import Committed
from specflow.drafters.eagle.forward import as_feature
from specflow.drafters.eagle.network import EagleNetwork
from specflow.drafters.frozen_layer import FrozenLayer
from specflow.drafters.linear import frozen_linear
from specflow.drafters.state_proposer import StateProposer


class EagleProposer(StateProposer):
    layer_ids: tuple[int, ...] = ()

    def __init__(
        self,
        network: EagleNetwork,
        *,
        embed: Callable[[Tensor], Tensor],
        head: Callable[[Tensor], Tensor],
        precision: str = "fp32",
    ) -> None:
        g = self.geometry = network.geometry
        self.precision, self._head = precision, head
        self._fc = frozen_linear(network.fc.weight, precision=precision)
        self._bias_H = network.fc.bias.detach().float().clone()
        super().__init__(
            g,
            [
                FrozenLayer(layer, g, precision=precision, state_norm=layer.input_layernorm)
                for layer in network.all_layers()
            ],
            embed=embed,
            draft_ids_D=network.draft_ids_D,
            frequencies=network.frequencies,
            rope_factor=network.rope_factor,
        )

    def score(self, hidden: Tensor) -> Tensor:
        logits = self._head(hidden.to(torch.bfloat16) if self.precision == "bf16" else hidden)
        return logits if self._ids_D is None else logits[..., self._ids_D]

    def first_state(self, rows: Committed) -> Tensor:
        return as_feature(rows.last_hidden_TH).squeeze(1).float()

    def enter(self, state_nH: Tensor, embeds_nH: Tensor) -> Tensor:
        return self._fc(torch.cat((embeds_nH, state_nH), dim=1)) + self._bias_H
