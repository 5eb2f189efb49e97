"""The toy's network and its proposer. Legend: N anchors, m proposals, H hidden size, K layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specflow.drafters.base import Committed, Draw, Proposal, draw_rows
from specflow.drafters.registry import Host


class ToyNetwork(nn.Module):
    def __init__(self, hidden_size: int, proposals: int, layer_ids: tuple[int, ...]) -> None:
        super().__init__()
        self.hidden_size, self.layer_ids = hidden_size, layer_ids
        self.maps = nn.ModuleList(nn.Linear(2 * hidden_size, hidden_size) for _ in range(proposals))

    def forward(self, feature_NH: Tensor, anchor_NH: Tensor) -> Tensor:
        """``[N, m, H]``: what the head reads."""
        both = torch.cat((feature_NH, anchor_NH), dim=1)
        return torch.stack([one(both) for one in self.maps], dim=1)


class ToyProposer:
    def __init__(self, network: ToyNetwork, host: Host) -> None:
        self._network, self._host = network, host
        self.num_proposals, self.layer_ids = len(network.maps), network.layer_ids
        self.reset(0)

    def fork(self) -> ToyProposer:
        return ToyProposer(self._network, self._host)

    def reset(self, capacity: int) -> None:
        self._last_H = torch.zeros(self._network.hidden_size)

    def extend(self, rows: Committed) -> None:
        if rows.next_ids_T.numel():
            self._last_H = rows.features_TKH[-1, -1].float()

    @torch.no_grad()
    def hidden(self, anchor: int, text_m: Tensor | None = None) -> Tensor:
        embed = self._host.embed(torch.tensor([anchor])).float()
        found: Tensor = self._network(self._last_H.unsqueeze(0), embed)[0]
        return found

    def score(self, hidden_mH: Tensor) -> Tensor:
        return self._host.head(hidden_mH)

    def propose(self, anchor: int) -> Tensor:
        return self._host.head(self.hidden(anchor)).argmax(dim=-1)

    def sample(self, anchor: int, draw: Draw) -> Proposal:
        return draw_rows(self._host.head(self.hidden(anchor)), draw)
