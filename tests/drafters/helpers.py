"""Small drafters and documents with every value drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specflow.drafters.base import Committed
from specflow.drafters.dflash.blocks import Blocks, assemble, block_embeddings
from specflow.drafters.dflash.geometry import DFlashGeometry
from specflow.drafters.dflash.network import Context, DFlashNetwork
from specflow.drafters.training import Source

VOCAB = 97


def geometry(**changes: object) -> DFlashGeometry:
    values = {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "block_size": 5,
        "layer_ids": [0, 2, 3],
        "vocab_size": VOCAB,
        "mask_token_id": 96,
        "max_position_embeddings": 512,
        **changes,
    }
    return DFlashGeometry.from_dict(values)


def network(seed: int = 0, **changes: object) -> DFlashNetwork:
    """Random weights, norms included, wide enough that every input matters."""
    torch.manual_seed(seed)
    net = DFlashNetwork(geometry(**changes))
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim == 1:
                parameter.copy_(1.0 + 0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * (1.2 / parameter.shape[1] ** 0.5))
    return net


@dataclass
class Doc:
    ids: Tensor
    supervised: Tensor
    features: Tensor


def document(seed: int, length: int = 30, prompt: int = 8, features: int = 3, hidden: int = 32) -> Doc:
    g = torch.Generator().manual_seed(seed)
    supervised = torch.zeros(length, dtype=torch.bool)
    supervised[prompt:] = True
    return Doc(
        torch.randint(0, VOCAB - 1, (length,), generator=g),
        supervised,
        torch.randn(length, features, hidden, generator=g) * 3,
    )


def committed(features_TKH: Tensor) -> Committed:
    """For drafters that read nothing but features."""
    return Committed(features_TKH=features_TKH, next_ids_T=torch.zeros(len(features_TKH), dtype=torch.int64))


def tables(seed: int = 0, hidden: int = 32) -> tuple[Tensor, Tensor]:
    """Embedding and head ``[V, H]``."""
    g = torch.Generator().manual_seed(100 + seed)
    return torch.randn(VOCAB, hidden, generator=g), torch.randn(VOCAB, hidden, generator=g)


def blocks_of(docs: list[Doc], anchors: list[list[int]], block_size: int = 5) -> Blocks:
    sources = [
        Source(token_ids_T=d.ids, supervised_T=d.supervised, features_TKH=d.features, anchors=torch.tensor(a))
        for d, a in zip(docs, anchors, strict=True)
    ]
    made = assemble(sources, block_size=block_size)
    assert made is not None
    return made


def training_logits(net: DFlashNetwork, blocks: Blocks, embedding: Tensor, head: Tensor, first_row: int = 1) -> Tensor:
    """``[N, B - first_row, V]`` by the training path."""
    keys, values = net.project_context(blocks.features_SKH, blocks.context_positions_S)
    context = Context(keys=keys, values=values, spans=blocks.spans, visible_N=blocks.visible_N)
    embeds = block_embeddings(
        embedding[blocks.anchor_ids_N], embedding[net.geometry.mask_token_id], block_size=net.geometry.block_size
    )
    return net(embeds, blocks.positions_NB, context, first_row=first_row) @ head.T
