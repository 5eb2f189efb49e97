"""DFlash as a drafter method: how it is made, trained and run (see ``specflow.drafters.registry.Method``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from specflow.drafters.block_loss import BlockLoss
from specflow.drafters.causality import plain_causality
from specflow.drafters.dflash.blocks import assemble
from specflow.drafters.dflash.forward import hidden_of
from specflow.drafters.dflash.geometry import DFlashGeometry, geometry_like_target
from specflow.drafters.dflash.initialise import initialise_from_target, initialise_random
from specflow.drafters.dflash.learner import DFlashLearner
from specflow.drafters.dflash.network import DFlashNetwork
from specflow.drafters.dflash.objective import default_decay
from specflow.drafters.dflash.params import BlockParams, Params
from specflow.drafters.dflash.proposer import DFlashProposer
from specflow.drafters.registry import Facts, Host, Layout, Needs
from specflow.drafters.target_weights import TargetWeights
from specflow.drafters.training import Ends, Source


def needs(params: Params) -> Needs:
    return Needs(last_hidden=loss_of(params).taught, mask_token=True)


def new_network(params: Params, facts: Facts) -> DFlashNetwork:
    assert facts.mask_token_id is not None  # asked for in ``needs``
    geometry = geometry_like_target(
        facts.config,
        num_layers=params.num_layers,
        block_size=params.block_size,
        layer_ids=facts.layer_ids,
        mask_token_id=facts.mask_token_id,
        **visibility(params),
    )
    return DFlashNetwork(geometry)


def initialise(network: nn.Module, params: BlockParams, target: TargetWeights, sample_TKH: Tensor) -> str:
    own, seed = _own(network), params.train.seed
    if params.train.initialise == "random":
        initialise_random(own, seed=seed)
        return "random weights, as asked"
    reason = initialise_from_target(own, target, sample_TKH, seed=seed)
    return f"random weights: {reason}" if reason else f"the target's last {params.num_layers} layers"


def build_learner(network: nn.Module, ends: Ends, params: Params) -> DFlashLearner:
    decay = params.position_decay or default_decay(params.block_size)
    return DFlashLearner(_own(network), ends, decay=decay, loss=loss_of(params))


def layout(network: nn.Module) -> Layout:
    size = _own(network).geometry.block_size
    return Layout(num_proposals=size - 1, block_size=size)


def build_network(config: dict[str, Any]) -> DFlashNetwork:
    return DFlashNetwork(DFlashGeometry.from_dict(config))


def network_config(network: nn.Module) -> dict[str, Any]:
    return _own(network).geometry.to_dict()


def build_proposer(network: nn.Module, target: Host, *, precision: str) -> DFlashProposer:
    return DFlashProposer(_own(network), embed=target.embed, head=target.head, precision=precision)


def training_hidden(network: nn.Module, embed: Callable[[Tensor], Tensor], source: Source) -> Tensor:
    own = _own(network)
    blocks = assemble([source], block_size=own.geometry.block_size)
    if blocks is None:
        raise ValueError("expected a source with at least one anchor, found none")
    return hidden_of(own, blocks, embed)


def loss_of(params: BlockParams) -> BlockLoss:
    return BlockLoss(
        kind=params.loss,
        soft_targets=params.train.soft_targets,
        lk_scale=params.lk_scale,
        lk_decay=params.lk_decay,
        weighting=params.position_weights,
        dpace_smoothing=params.dpace_smoothing,
    )


def visibility(params: BlockParams) -> dict[str, Any]:
    """What rows of a block see, as fields of the geometry."""
    layers = params.windowed_layers
    return {
        "sliding_window": params.sliding_window if layers else None,
        "sliding_layers": layers,
        "causal_block": plain_causality(params.causal_block, sliding=len(layers), layers=params.num_layers),
    }


def _own(network: nn.Module) -> DFlashNetwork:
    if not isinstance(network, DFlashNetwork):
        raise TypeError(f"expected a DFlashNetwork, found {type(network).__name__}")
    return network
