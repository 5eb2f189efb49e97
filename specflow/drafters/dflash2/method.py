"""DFlash 2 as a drafter method: how it is made, trained and run (see ``specflow.drafters.registry.Method``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from specflow.drafters.dflash import method as dflash
from specflow.drafters.dflash.network import DFlashNetwork
from specflow.drafters.dflash.objective import default_decay
from specflow.drafters.dflash2.geometry import DFlash2Geometry
from specflow.drafters.dflash2.learner import DFlash2Learner
from specflow.drafters.dflash2.network import DFlash2Network
from specflow.drafters.dflash2.objective import SelectorLoss
from specflow.drafters.dflash2.params import Params
from specflow.drafters.dflash2.proposer import DFlash2Proposer
from specflow.drafters.registry import Facts, Host, Layout, Needs
from specflow.drafters.sizes import sizes_of_target
from specflow.drafters.target_weights import TargetWeights
from specflow.drafters.training import Ends, Source

SELECTOR_STREAM = 1 << 32
"""Added to the seed of the backbone's random numbers for those of the selector."""


def needs(params: Params) -> Needs:
    return Needs(last_hidden=dflash.loss_of(params).taught, mask_token=True)


def new_network(params: Params, facts: Facts) -> DFlash2Network:
    assert facts.mask_token_id is not None  # asked for in ``needs``
    convolves, selects = params.conv_group_size > 0, params.selector_top_k > 0
    geometry = DFlash2Geometry(
        **sizes_of_target(facts.config),
        num_layers=params.num_layers,
        block_size=params.block_size,
        layer_ids=tuple(facts.layer_ids),
        mask_token_id=facts.mask_token_id,
        **dflash.visibility(params),
        conv_kernel_size=params.conv_kernel_size if convolves else 0,
        conv_group_size=params.conv_group_size,
        selector_rank=params.selector_rank if selects else 0,
        selector_top_k=params.selector_top_k,
        output_multiplier=params.output_multiplier,
        final_logit_softcapping=params.final_logit_softcapping,
    )
    return DFlash2Network(geometry)


def initialise(network: nn.Module, params: Params, target: TargetWeights, sample_TKH: Tensor) -> str:
    """The backbone as DFlash would begin; convolution and selector change nothing yet."""
    own = _own(network)
    backbone = DFlashNetwork(own.geometry)
    said = dflash.initialise(backbone, params, target, sample_TKH)
    own.load_state_dict(backbone.state_dict(), strict=False)
    become_fresh(own, seed=params.train.seed, std=params.selector_init)
    return said


def become_fresh(network: DFlash2Network, *, seed: int, std: float) -> None:
    """Convolutions that are the identity, and a selector that adds nothing until it has learned."""
    for layer in network.convolved_layers:
        layer.attention_conv.become_identity()
        layer.mlp_conv.become_identity()
    if network.selector is not None:
        network.selector.initialise(torch.Generator().manual_seed(SELECTOR_STREAM + seed), std=std)


def build_learner(network: nn.Module, ends: Ends, params: Params) -> DFlash2Learner:
    decay = params.position_decay or default_decay(params.block_size)
    return DFlash2Learner(
        _own(network), ends, decay=decay, loss=dflash.loss_of(params), selector=selector_loss_of(params)
    )


def selector_loss_of(params: Params) -> SelectorLoss:
    return SelectorLoss(
        weight=params.selector_weight,
        warmup=params.selector_warmup,
        ramp=params.selector_ramp,
        stop_gradient=params.selector_stop_gradient,
    )


def layout(network: nn.Module) -> Layout:
    return dflash.layout(network)


def build_network(config: dict[str, Any]) -> DFlash2Network:
    return DFlash2Network(DFlash2Geometry.from_dict(config))


def network_config(network: nn.Module) -> dict[str, Any]:
    return _own(network).geometry.to_dict()


def build_proposer(network: nn.Module, target: Host, *, precision: str) -> DFlash2Proposer:
    return DFlash2Proposer(_own(network), embed=target.embed, head=target.head, precision=precision)


def training_hidden(network: nn.Module, embed: Callable[[Tensor], Tensor], source: Source) -> Tensor:
    return dflash.training_hidden(network, embed, source)


def _own(network: nn.Module) -> DFlash2Network:
    if not isinstance(network, DFlash2Network):
        raise TypeError(f"expected a DFlash2Network, found {type(network).__name__}")
    return network
