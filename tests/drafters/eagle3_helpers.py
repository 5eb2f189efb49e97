"""Small EAGLE-3 drafters and documents with every value drawn from a seed."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow.drafters.eagle3.distances import Distance
from specflow.drafters.eagle3.geometry import Eagle3Geometry
from specflow.drafters.eagle3.learner import Eagle3Learner
from specflow.drafters.eagle3.network import Eagle3Network
from specflow.drafters.eagle3.proposer import Eagle3Proposer
from specflow.drafters.training import Source
from specflow.training.frozen import FrozenEnds
from tests.drafters.helpers import VOCAB, document, tables

DRAFT_IDS = [i for i in range(VOCAB) if i % 3 != 1]


def geometry(**changes: object) -> Eagle3Geometry:
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
        "layer_ids": [0, 2, 3],
        "vocab_size": VOCAB,
        "draft_vocab_size": None,
        "fc_norm": False,
        "norm_output": False,
        "max_position_embeddings": 512,
        **changes,
    }
    return Eagle3Geometry.from_dict(values)


def network(seed: int = 0, *, own_head: bool = False, **changes: object) -> Eagle3Network:
    """Random weights, norms included, wide enough that every input matters."""
    torch.manual_seed(seed)
    size = {"draft_vocab_size": len(DRAFT_IDS)} if own_head else {}
    net = Eagle3Network(geometry(**{**size, **changes}), draft_ids=torch.tensor(DRAFT_IDS) if own_head else None)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim == 1:
                parameter.copy_(1.0 + 0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * (1.2 / parameter.shape[1] ** 0.5))
    return net


def source(seed: int, length: int = 30, prompt: int = 12, **given: object) -> Source:
    made = document(seed, length, prompt)
    last = torch.randn(length, 32, generator=torch.Generator().manual_seed(1000 + seed)) * 0.4
    values = {
        "token_ids_T": made.ids,
        "supervised_T": made.supervised,
        "features_TKH": made.features,
        "last_hidden_TH": last,
        "anchors": torch.empty(0, dtype=torch.int64),
        **given,
    }
    return Source(**values)  # type: ignore[arg-type]


def ends() -> FrozenEnds:
    embedding, head = tables()
    return FrozenEnds(embedding, head, softmax_tokens=torch.arange(VOCAB))


def learner(
    net: Eagle3Network, *, depths: int = 4, decay: float = 0.8, reference_mask: bool = False, **distance: object
) -> Eagle3Learner:
    chosen = Distance(**distance)  # type: ignore[arg-type]
    return Eagle3Learner(net, ends(), depths=depths, decay=decay, distance=chosen, reference_mask=reference_mask)


def proposer(net: Eagle3Network, precision: str = "fp32") -> Eagle3Proposer:
    embedding, head = tables()

    def logits(hidden: Tensor) -> Tensor:
        return hidden.float() @ head.T

    return Eagle3Proposer(net, embed=lambda ids: embedding[ids], head=logits, precision=precision)
