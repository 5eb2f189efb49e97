"""DFlash as a drafter method: how it is built and run (see ``specflow.drafters.registry.Method``)."""

from __future__ import annotations

from typing import Any

from torch import nn

from specflow.drafters.dflash.geometry import DFlashGeometry
from specflow.drafters.dflash.network import DFlashNetwork
from specflow.drafters.dflash.proposer import DFlashProposer
from specflow.drafters.registry import Host


def build_network(config: dict[str, Any]) -> DFlashNetwork:
    return DFlashNetwork(DFlashGeometry.from_dict(config))


def network_config(network: nn.Module) -> dict[str, Any]:
    return _own(network).geometry.to_dict()


def build_proposer(network: nn.Module, target: Host, *, precision: str) -> DFlashProposer:
    return DFlashProposer(_own(network), embed=target.embed, head=target.head, precision=precision)


def _own(network: nn.Module) -> DFlashNetwork:
    if not isinstance(network, DFlashNetwork):
        raise TypeError(f"expected a DFlashNetwork, found {type(network).__name__}")
    return network
