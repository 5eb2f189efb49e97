"""A small network, its gradients and its options, the same in every process."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specflow.config.drafter import TrainParams

PARAMS = TrainParams(weight_decay=0.1)


def small(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 3))


def gradients(network: nn.Module, step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(p.shape, generator=generator) for name, p in network.named_parameters()}
