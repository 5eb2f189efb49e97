"""Examples and cost of building trees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specflow_kernels.build_tree import build_tree as public
from specflow_kernels.build_tree import explain
from specflow_kernels.build_tree.reference import build_tree_reference
from specflow_kernels.build_tree.tree import Tree
from specflow_kernels.cost import Cost, bytes_of
from specflow_kernels.operator import Case, Operator


def make(device: torch.device, *, batch: int, branches: int, levels: int, slots: int) -> dict[str, Any]:
    """An expansion of ``branches`` nodes, then of ``branches ** 2`` a level, scores falling with the level."""
    nodes = branches + (levels - 1) * branches**2
    place = torch.arange(nodes, device=device)
    level = (place - branches) // branches**2 + 1  # 0 for the first, since a negative quotient is rounded down
    before = branches + (level - 2) * branches**2
    inside = (place - branches) % branches**2 // branches
    parent = torch.where(level <= 0, -1, torch.where(level == 1, inside, before + inside))
    scores = -torch.rand(batch, nodes, device=device) - level.to(device)
    return {
        "anchor_B": torch.zeros(batch, dtype=torch.int64, device=device),
        "scores_BX": scores,
        "tokens_BX": torch.randint(32000, (batch, nodes), device=device),
        "parent_BX": parent.expand(batch, nodes),
        "slots": slots,
        "levels": levels,
    }


def cost(anchor_B: Tensor, scores_BX: Tensor, tokens_BX: Tensor, parent_BX: Tensor, *, slots: int, **_: Any) -> Cost:
    """Every node against every other to rank them."""
    batch, nodes = scores_BX.shape
    moved = bytes_of((scores_BX, tokens_BX, parent_BX)) + batch * (5 * slots * 8 + slots**2)
    return Cost(bytes=moved, operations=3 * batch * nodes**2)


def kernel(**inputs: Any) -> Tree:
    from specflow_kernels.build_tree.launching import build_tree_triton

    return build_tree_triton(**inputs)


OPERATOR = Operator(
    name="build_tree",
    summary="the best nodes of an expansion, numbered and linked",
    public=public,
    kernel=kernel,
    reference=build_tree_reference,
    explain=explain,
    cost=cost,
    cases=(
        Case(name="4 branches, 5 levels", make=lambda device: make(device, batch=8, branches=4, levels=5, slots=16)),
        Case(name="10 branches, 7 levels", make=lambda device: make(device, batch=32, branches=10, levels=7, slots=64)),
    ),
)
