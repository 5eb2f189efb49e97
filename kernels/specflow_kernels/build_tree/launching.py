"""The Triton kernels behind ``build_tree``."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow_kernels.build_tree.kernels import link_kernel, number_kernel, rank_kernel
from specflow_kernels.build_tree.tree import Tree
from specflow_kernels.launching import launch, power_of_two

TILE = 64


def build_tree_triton(
    anchor_B: Tensor, scores_BX: Tensor, tokens_BX: Tensor, parent_BX: Tensor, *, slots: int, levels: int
) -> Tree:
    """Same as the reference, in three launches; shapes are checked by ``build_tree``."""
    anchor, tokens, parent = anchor_B.contiguous(), tokens_BX.contiguous(), parent_BX.contiguous()
    scores = scores_BX.float().contiguous()
    (batch, nodes), device = scores.shape, scores.device
    chosen, slot_of = (torch.empty((batch, nodes), dtype=torch.int32, device=device) for _ in range(2))
    node_of = torch.empty((batch, slots), dtype=torch.int32, device=device)
    out = [torch.empty((batch, slots), dtype=torch.int64, device=device) for _ in range(5)]
    visible = torch.empty((batch, slots, slots), dtype=torch.uint8, device=device)
    launch(rank_kernel, (batch, -(-nodes // TILE)), scores, chosen, nodes, slots - 1, BLOCK=TILE)
    launch(
        number_kernel, (batch,), chosen, slot_of, node_of, nodes, slots, BLOCK=power_of_two(nodes, least=16),
    )  # fmt: skip
    launch(
        link_kernel, (batch,), anchor, tokens, parent, chosen, slot_of, node_of, *out, visible, nodes, slots, levels,
        BLOCK=power_of_two(slots, least=16), warps=8,
    )  # fmt: skip
    filled, above, child, sibling, depth = out
    return Tree(filled, above, child, sibling, depth, visible.view(torch.bool))
