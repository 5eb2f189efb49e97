"""Small DSpark drafters with every value drawn from a seed, and what they compute in training."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow.drafters.dflash.blocks import Blocks, assemble
from specflow.drafters.dflash.forward import hidden_of
from specflow.drafters.dspark.geometry import HEADS, DSparkGeometry
from specflow.drafters.dspark.network import DSparkNetwork
from specflow.drafters.dspark.proposer import DSparkProposer
from specflow.drafters.training import Source
from tests.drafters.helpers import Doc, geometry, tables

RANK = 6
KINDS = [(head, anchor) for head in HEADS for anchor in (True, False)]
"""Every head with both layouts of a block; four proposals each."""


def dspark_network(head: str = "markov", anchor: bool = True, seed: int = 0, **changes: object) -> DSparkNetwork:
    """Random weights, biases and norms included, wide enough that every input matters."""
    torch.manual_seed(seed)
    own = {"sample_from_anchor": anchor, "head": head, "head_rank": RANK, "confidence": True}
    base = geometry(block_size=4 if anchor else 5).to_dict()
    net = DSparkNetwork(DSparkGeometry.from_dict({**base, **own, **changes}))
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if parameter.ndim == 1:
                parameter.copy_(0.2 * torch.randn_like(parameter) + (0.0 if name.endswith("bias") else 1.0))
            elif "markov_w" in name:
                parameter.copy_(torch.randn_like(parameter) * 1.5)
            else:
                parameter.copy_(torch.randn_like(parameter) * (1.2 / parameter.shape[1] ** 0.5))
    return net


def dspark_proposer(net: DSparkNetwork, precision: str = "fp32") -> DSparkProposer:
    embedding, head = tables()
    return DSparkProposer(net, embed=lambda i: embedding[i], head=lambda h: h.float() @ head.T, precision=precision)


def dspark_blocks(net: DSparkNetwork, docs: list[Doc], anchors: list[list[int]]) -> Blocks:
    sources = [
        Source(token_ids_T=d.ids, supervised_T=d.supervised, features_TKH=d.features, anchors=torch.tensor(a))
        for d, a in zip(docs, anchors, strict=True)
    ]
    made = assemble(sources, block_size=net.geometry.block_size, proposals=net.geometry.num_proposals)
    assert made is not None
    return made


def corrected_logits(net: DSparkNetwork, blocks: Blocks) -> Tensor:
    """``[N, M, V]`` by the training path, the tokens before each row given."""
    embedding, head_VH = tables()
    hidden = hidden_of(net, blocks, lambda i: embedding[i])
    codes = net.markov_head.codes(hidden, net.embed_before(blocks.anchor_ids_N, blocks.labels_NM))
    return hidden @ head_VH.T + codes @ net.markov_head.markov_w2.weight.T
