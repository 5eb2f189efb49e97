"""The toy as a drafter method; see ``specflow.drafters.registry.Method``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from specflow.drafters.toy.learner import ToyLearner, rows_of
from specflow.drafters.toy.network import ToyNetwork, ToyProposer
from specflow.drafters.toy.params import Params
from torch import Tensor, nn

from specflow.drafters.registry import Facts, Host, Layout, Needs
from specflow.drafters.target_weights import TargetWeights
from specflow.drafters.training import Ends, Source


def needs(params: Params) -> Needs:
    return Needs()


def new_network(params: Params, facts: Facts) -> ToyNetwork:
    return ToyNetwork(int(facts.config["hidden_size"]), params.proposals, facts.layer_ids)


def initialise(network: nn.Module, params: Params, target: TargetWeights, sample_TKH: Tensor) -> str:
    generator = torch.Generator().manual_seed(params.train.seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return "random weights"


def build_learner(network: Any, ends: Ends, params: Params) -> ToyLearner:
    return ToyLearner(network, ends, sureness=params.sureness)


def layout(network: Any) -> Layout:
    return Layout(num_proposals=len(network.maps), block_size=len(network.maps) + 1)


def build_network(config: dict[str, Any]) -> ToyNetwork:
    return ToyNetwork(config["hidden_size"], config["proposals"], tuple(config["layer_ids"]))


def network_config(network: Any) -> dict[str, Any]:
    sizes = {"hidden_size": network.hidden_size, "proposals": len(network.maps)}
    return {**sizes, "layer_ids": list(network.layer_ids)}


def build_proposer(network: Any, target: Host, *, precision: str) -> ToyProposer:
    return ToyProposer(network, target)


def training_hidden(network: Any, embed: Callable[[Tensor], Tensor], source: Source) -> Tensor:
    rows = rows_of([source], len(network.maps))
    assert rows is not None
    found: Tensor = network(rows.feature_NH, embed(rows.anchor_N).float())
    return found
