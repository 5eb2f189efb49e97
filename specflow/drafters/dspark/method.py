"""DSpark as a drafter method: how it is made, trained and run (see ``specflow.drafters.registry.Method``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from specflow.drafters.dflash.blocks import assemble
from specflow.drafters.dflash.forward import hidden_of
from specflow.drafters.dflash.geometry import geometry_like_target
from specflow.drafters.dflash.initialise import initialise_from_target, initialise_random
from specflow.drafters.dflash.objective import default_decay
from specflow.drafters.dspark.geometry import DSparkGeometry
from specflow.drafters.dspark.heads import initialise_heads
from specflow.drafters.dspark.learner import CONFIDENCE, CROSS_ENTROPY, L1, DSparkLearner
from specflow.drafters.dspark.network import DSparkNetwork
from specflow.drafters.dspark.params import Params
from specflow.drafters.dspark.proposer import DSparkProposer
from specflow.drafters.registry import Facts, Host, Layout, Needs
from specflow.drafters.target_weights import TargetWeights
from specflow.drafters.training import Ends, Source


def needs(params: Params) -> Needs:
    return Needs(last_hidden=True, mask_token=True)


def new_network(params: Params, facts: Facts) -> DSparkNetwork:
    assert facts.mask_token_id is not None  # asked for in ``needs``
    backbone = geometry_like_target(
        facts.config,
        num_layers=params.num_layers,
        block_size=params.block_size,
        layer_ids=facts.layer_ids,
        mask_token_id=facts.mask_token_id,
    )
    own = {
        "sample_from_anchor": params.sample_from_anchor,
        "head": params.head,
        "head_rank": params.head_rank,
        "confidence": params.confidence,
    }
    return DSparkNetwork(DSparkGeometry.from_dict({**backbone.to_dict(), **own}))


def initialise(network: nn.Module, params: Params, target: TargetWeights, sample_TKH: Tensor) -> str:
    own, seed = _own(network), params.train.seed
    if params.train.initialise == "random":
        initialise_random(own, seed=seed)
        start = "random weights, as asked"
    else:
        reason = initialise_from_target(own, target, sample_TKH, seed=seed)
        start = f"random weights: {reason}" if reason else f"the target's last {params.num_layers} layers"
    initialise_heads(own.markov_head, own.confidence_head, seed=seed)
    return f"{start}; no correction"


def build_learner(network: nn.Module, ends: Ends, params: Params) -> DSparkLearner:
    own = _own(network)
    return DSparkLearner(
        own,
        ends,
        decay=params.position_decay or default_decay(own.geometry.num_proposals + 1),
        weights={CROSS_ENTROPY: params.ce_weight, L1: params.l1_weight, CONFIDENCE: params.confidence_weight},
        detach=params.confidence_detach,
        soft_targets=params.train.soft_targets,
    )


def layout(network: nn.Module) -> Layout:
    g = _own(network).geometry
    return Layout(num_proposals=g.num_proposals, block_size=g.block_size, sample_from_anchor=g.sample_from_anchor)


def build_network(config: dict[str, Any]) -> DSparkNetwork:
    return DSparkNetwork(DSparkGeometry.from_dict(config))


def network_config(network: nn.Module) -> dict[str, Any]:
    return _own(network).geometry.to_dict()


def build_proposer(network: nn.Module, target: Host, *, precision: str) -> DSparkProposer:
    return DSparkProposer(_own(network), embed=target.embed, head=target.head, precision=precision)


def training_hidden(network: nn.Module, embed: Callable[[Tensor], Tensor], source: Source) -> Tensor:
    own = _own(network)
    g = own.geometry
    blocks = assemble([source], block_size=g.block_size, proposals=g.num_proposals)
    if blocks is None:
        raise ValueError("expected a source with at least one anchor, found none")
    return hidden_of(own, blocks, embed)


def _own(network: nn.Module) -> DSparkNetwork:
    if not isinstance(network, DSparkNetwork):
        raise TypeError(f"expected a DSparkNetwork, found {type(network).__name__}")
    return network
