"""EAGLE-3 as a drafter method: how it is made, trained and run (see ``specflow.drafters.registry.Method``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from specflow.drafters.dflash.initialise import initialise_random
from specflow.drafters.eagle3.distances import Distance
from specflow.drafters.eagle3.forward import hidden_of
from specflow.drafters.eagle3.geometry import Eagle3Geometry, geometry_like_target
from specflow.drafters.eagle3.initialise import initialise_from_target
from specflow.drafters.eagle3.learner import Eagle3Learner
from specflow.drafters.eagle3.network import Eagle3Network
from specflow.drafters.eagle3.params import Params
from specflow.drafters.eagle3.proposer import Eagle3Proposer
from specflow.drafters.registry import Facts, Host, Layout, Needs
from specflow.drafters.rollouts import starts_at_anchors
from specflow.drafters.target_weights import TargetWeights
from specflow.drafters.training import Ends, Source


def needs(params: Params) -> Needs:
    return Needs(last_hidden=True, draft_vocab_size=params.draft_vocab_size)


def new_network(params: Params, facts: Facts) -> Eagle3Network:
    geometry = geometry_like_target(
        facts.config,
        num_layers=params.num_layers,
        steps=params.draft_steps,
        layer_ids=facts.layer_ids,
        draft_vocab_size=params.draft_vocab_size,
        fc_norm=params.fc_norm,
        norm_output=params.norm_output,
    )
    return Eagle3Network(geometry, draft_ids=None if facts.draft_ids is None else torch.tensor(facts.draft_ids))


def initialise(network: nn.Module, params: Params, target: TargetWeights, sample_TKH: Tensor) -> str:
    own, seed = _own(network), params.train.seed
    if params.train.initialise == "random":
        initialise_random(own, seed=seed)
        return "random weights, as asked"
    reason = initialise_from_target(own, target, seed=seed)
    return f"random weights: {reason}" if reason else f"the target's last {params.num_layers} layers and head"


def build_learner(network: nn.Module, ends: Ends, params: Params) -> Eagle3Learner:
    return Eagle3Learner(
        _own(network),
        ends,
        depths=params.ttt_length,
        decay=params.ttt_decay,
        distance=Distance(**params.loss.model_dump()),
        reference_mask=params.mask_alignment == "reference",
    )


def layout(network: nn.Module) -> Layout:
    steps = _own(network).geometry.steps
    return Layout(num_proposals=steps, block_size=steps + 1, sample_from_anchor=True)


def build_network(config: dict[str, Any]) -> Eagle3Network:
    return Eagle3Network(Eagle3Geometry.from_dict(config))


def network_config(network: nn.Module) -> dict[str, Any]:
    return _own(network).geometry.to_dict()


def build_proposer(network: nn.Module, target: Host, *, precision: str) -> Eagle3Proposer:
    return Eagle3Proposer(_own(network), embed=target.embed, head=target.head, precision=precision)


def training_hidden(network: nn.Module, embed: Callable[[Tensor], Tensor], source: Source) -> Tensor:
    own = _own(network)
    return hidden_of(own, starts_at_anchors(source, depths=own.geometry.steps), embed).transpose(0, 1)


def _own(network: nn.Module) -> Eagle3Network:
    if not isinstance(network, Eagle3Network):
        raise TypeError(f"expected an Eagle3Network, found {type(network).__name__}")
    return network
