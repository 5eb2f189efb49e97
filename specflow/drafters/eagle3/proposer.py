"""EAGLE-3 at decoding time: how features enter, what the head reads, what goes on (see ``state_proposer``).

Legend: T committed rows, K captured layers, H hidden size, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specflow.drafters.base import Committed
from specflow.drafters.eagle3.network import Eagle3Network, Layer
from specflow.drafters.frozen_layer import FrozenLayer, frozen_scale
from specflow.drafters.layers import RMSNorm
from specflow.drafters.linear import frozen_linear
from specflow.drafters.state_proposer import StateProposer


class Eagle3Proposer(StateProposer):
    def __init__(
        self,
        network: Eagle3Network,
        *,
        embed: Callable[[Tensor], Tensor],
        head: Callable[[Tensor], Tensor],
        precision: str = "fp32",
    ) -> None:
        g = self.geometry = network.geometry
        self.precision, self._head, self.layer_ids = precision, head, g.layer_ids
        self._fc = frozen_linear(network.fc.weight, precision=precision)
        norms = [norm for norm in network.fc_norm if isinstance(norm, RMSNorm)] if g.fc_norm else []
        self._fc_norm = torch.stack([frozen_scale(norm) for norm in norms]) if norms else None
        self._norm = frozen_scale(network.norm)
        self._own_head = frozen_linear(network.lm_head.weight, precision=precision) if network.has_own_head else None
        super().__init__(
            g,
            [_frozen(layer, network, precision=precision) for layer in network.all_layers()],
            embed=embed,
            draft_ids_D=network.draft_ids_D,
            frequencies=network.frequencies,
            rope_factor=network.rope_factor,
        )

    def score(self, hidden: Tensor) -> Tensor:
        if self._own_head is not None:
            return self._own_head(hidden)
        return self._head(hidden.to(torch.bfloat16) if self.precision == "bf16" else hidden)

    def first_state(self, rows: Committed) -> Tensor:
        count = rows.features_TKH.shape[1]
        if count != self.geometry.num_features:
            raise ValueError(f"extend: rows of {count} features; expected {self.geometry.num_features} features")
        features_TKH = rows.features_TKH.float()
        if self._fc_norm is not None:
            features_TKH = self._normalise(features_TKH) * self._fc_norm
        return self._fc(features_TKH.flatten(1))

    def finish(self, state: Tensor) -> Tensor:
        return self._normalise(state) * self._norm

    def carried(self, state: Tensor) -> Tensor:
        return self.finish(state) if self.geometry.norm_output else state

    def _normalise(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.geometry.rms_norm_eps)


def _frozen(layer: Layer, network: Eagle3Network, *, precision: str) -> FrozenLayer:
    return FrozenLayer(
        layer,
        network.geometry,
        precision=precision,
        state_norm=layer.hidden_norm,
        embed_norm=getattr(layer, "input_layernorm", None),
    )
