"""Small EAGLE drafters with every value drawn from a seed; documents are those of EAGLE-3's tests."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow.drafters.eagle.forward import EagleRollout
from specflow.drafters.eagle.geometry import EagleGeometry
from specflow.drafters.eagle.learner import EagleLearner
from specflow.drafters.eagle.network import EagleNetwork
from specflow.drafters.eagle.proposer import EagleProposer
from specflow.drafters.rollout_forward import rolled_out
from specflow.drafters.rollouts import Rollouts
from tests.drafters.eagle3_helpers import DRAFT_IDS, ends
from tests.drafters.helpers import VOCAB, tables


def geometry(**changes: object) -> EagleGeometry:
    values = {
        "hidden_size": 32,
        "num_layers": 1,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "steps": 4,
        "vocab_size": VOCAB,
        "draft_vocab_size": None,
        "max_position_embeddings": 512,
        **changes,
    }
    return EagleGeometry.from_dict(values)


def network(seed: int = 0, *, limited: bool = False, **changes: object) -> EagleNetwork:
    """Random weights, norms and bias included, wide enough that all inputs matter.

    Not so wide that states, which no norm bounds, grow from step to step. ``limited``: ``DRAFT_IDS`` only.
    """
    torch.manual_seed(seed)
    size = {"draft_vocab_size": len(DRAFT_IDS)} if limited else {}
    net = EagleNetwork(geometry(**{**size, **changes}), draft_ids=torch.tensor(DRAFT_IDS) if limited else None)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim == 1:
                parameter.copy_(1.0 + 0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * (0.7 / parameter.shape[1] ** 0.5))
        net.fc.bias.sub_(1.0)
    return net


def learner(net: EagleNetwork, *, feature: float = 1.0, token: float = 0.1, noise: float = 0.02) -> EagleLearner:
    return EagleLearner(net, ends(), feature_weight=feature, token_weight=token, noise=noise)


def hidden_of(net: EagleNetwork, rollouts: Rollouts) -> Tensor:
    """``[L, N, H]``, without noise."""
    return rolled_out(EagleRollout(net), rollouts, ends().embed)


def proposer(net: EagleNetwork, precision: str = "fp32") -> EagleProposer:
    embedding, head = tables()

    def logits(hidden: Tensor) -> Tensor:
        return hidden.float() @ head.T

    return EagleProposer(net, embed=lambda ids: embedding[ids], head=logits, precision=precision)
