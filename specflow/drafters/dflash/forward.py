"""The DFlash training forward: target features and anchors in, the hidden rows that the head reads out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specflow.drafters.dflash.blocks import Blocks, block_embeddings
from specflow.drafters.dflash.network import Context, DFlashNetwork

Embed = Callable[[Tensor], Tensor]


def embedded(network: DFlashNetwork, ids_N: Tensor, embed: Embed) -> Tensor:
    """``[N, B, H]`` fp32: blocks that begin with the tokens ``ids_N``, the other rows masked."""
    g = network.geometry
    mask_H = embed(torch.tensor(g.mask_token_id, device=ids_N.device)).float()
    return block_embeddings(embed(ids_N).float(), mask_H, block_size=g.block_size)


def hidden_of(network: DFlashNetwork, blocks: Blocks, embed: Embed) -> Tensor:
    """``[N, m, H]``: what the head reads for every proposal of every block."""
    keys, values = network.project_context(blocks.features_SKH, blocks.context_positions_S)
    context = Context(keys=keys, values=values, spans=blocks.spans, visible_N=blocks.visible_N)
    embeds_NBH = embedded(network, blocks.anchor_ids_N, embed)
    hidden: Tensor = network(embeds_NBH, blocks.positions_NB, context, first_row=network.geometry.first_row)
    return hidden
