"""EAGLE as a drafter method: how it is made, trained and run (see ``specflow.drafters.registry.Method``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from specflow.drafters.eagle.forward import EagleRollout, with_last_hidden
from specflow.drafters.eagle.geometry import EagleGeometry, geometry_like_target
from specflow.drafters.eagle.initialise import initialise_anew, initialise_from_target
from specflow.drafters.eagle.learner import EagleLearner
from specflow.drafters.eagle.network import EagleNetwork
from specflow.drafters.eagle.params import Params
from specflow.drafters.eagle.proposer import EagleProposer
from specflow.drafters.registry import Facts, Host, Layout, Needs
from specflow.drafters.rollout_forward import rolled_out
from specflow.drafters.rollouts import starts_at_anchors
from specflow.drafters.target_weights import TargetWeights
from specflow.drafters.training import Ends, Source


def needs(params: Params) -> Needs:
    return Needs(last_hidden=True, draft_vocab_size=params.draft_vocab_size)


def new_network(params: Params, facts: Facts) -> EagleNetwork:
    geometry = geometry_like_target(
        facts.config,
        num_layers=params.num_layers,
        steps=params.draft_steps,
        draft_vocab_size=params.draft_vocab_size,
    )
    return EagleNetwork(geometry, draft_ids=None if facts.draft_ids is None else torch.tensor(facts.draft_ids))


def initialise(network: nn.Module, params: Params, target: TargetWeights, sample_TKH: Tensor) -> str:
    own, seed = _own(network), params.train.seed
    if params.train.initialise == "random":
        initialise_anew(own, seed=seed)
        return "random weights, as asked"
    reason = initialise_from_target(own, target, seed=seed)
    return f"random weights: {reason}" if reason else f"the target's last {params.num_layers} layers"


def build_learner(network: nn.Module, ends: Ends, params: Params) -> EagleLearner:
    return EagleLearner(
        _own(network),
        ends,
        feature_weight=params.feature_weight,
        token_weight=params.token_weight,
        noise=params.noise,
    )


def layout(network: nn.Module) -> Layout:
    steps = _own(network).geometry.steps
    return Layout(num_proposals=steps, block_size=steps + 1, sample_from_anchor=True)


def build_network(config: dict[str, Any]) -> EagleNetwork:
    return EagleNetwork(EagleGeometry.from_dict(config))


def network_config(network: nn.Module) -> dict[str, Any]:
    return _own(network).geometry.to_dict()


def build_proposer(network: nn.Module, target: Host, *, precision: str) -> EagleProposer:
    return EagleProposer(_own(network), embed=target.embed, head=target.head, precision=precision)


def training_hidden(network: nn.Module, embed: Callable[[Tensor], Tensor], source: Source) -> Tensor:
    """The first row as in training; those after it feed themselves, as in decoding."""
    own = _own(network)
    rollouts = starts_at_anchors(with_last_hidden(source), depths=own.geometry.steps)
    return rolled_out(EagleRollout(own), rollouts, embed).transpose(0, 1)


def _own(network: nn.Module) -> EagleNetwork:
    if not isinstance(network, EagleNetwork):
        raise TypeError(f"expected an EagleNetwork, found {type(network).__name__}")
    return network
