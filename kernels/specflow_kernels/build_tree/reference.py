"""Building of trees request by request: what the kernel must equal."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specflow_kernels.build_tree.tree import Tree


def build_tree_reference(
    anchor_B: Tensor, scores_BX: Tensor, tokens_BX: Tensor, parent_BX: Tensor, *, slots: int, levels: int
) -> Tree:
    """Arguments as in ``build_tree``."""
    rows = [
        _one(int(anchor_B[b]), scores_BX[b].tolist(), tokens_BX[b].tolist(), parent_BX[b].tolist(), slots)
        for b in range(anchor_B.shape[0])
    ]
    device = anchor_B.device
    columns = [torch.tensor(column, dtype=torch.int64, device=device) for column in zip(*rows, strict=True)]
    if not rows:
        columns = [torch.empty((0, slots), dtype=torch.int64, device=device) for _ in range(5)]
        columns.append(torch.empty((0, slots, slots), dtype=torch.int64, device=device))
    filled, above, child, sibling, depth, visible = columns
    return Tree(filled, above, child, sibling, depth, visible.bool())


def _one(anchor: int, scores: list[float], tokens: list[int], parents: list[int], slots: int) -> tuple[list, ...]:  # type: ignore[type-arg]
    nothing = [-1] * slots
    alone = [[int(i == j) for j in range(slots)] for i in range(slots)]
    if any(map(math.isnan, scores)):
        return nothing, nothing, nothing, nothing, [0] * slots, alone
    best = sorted(range(len(scores)), key=lambda node: (-scores[node], node))[: slots - 1]
    nodes = [None, *sorted(best)]
    slot_of = {node: slot for slot, node in enumerate(nodes) if node is not None}
    parent, depth, visible = [-1], [0], [alone[0]]
    for slot in range(1, slots):
        node = nodes[slot]
        above = 0 if parents[node] < 0 else slot_of[parents[node]]  # type: ignore[index]
        parent.append(above)
        depth.append(depth[above] + 1)
        visible.append([a | b for a, b in zip(visible[above], alone[slot], strict=True)])
    child = [next((j for j in range(slots) if parent[j] == i), -1) for i in range(slots)]
    sibling = [next((j for j in range(i + 1, slots) if parent[j] == parent[i]), -1) for i in range(slots)]
    return [anchor, *(tokens[n] for n in nodes[1:])], parent, child, sibling, depth, visible  # type: ignore[index]
