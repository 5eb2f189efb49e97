"""Examples and cost of tree verification."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specflow_kernels.cost import Cost
from specflow_kernels.operator import Case, Operator
from specflow_kernels.verify_tree import explain, verify_tree
from specflow_kernels.verify_tree.reference import verify_tree_reference


def make(
    device: torch.device, *, batch: int, slots: int, branches: int, vocabulary: int, greedy: bool
) -> dict[str, Any]:
    """Complete trees: slot i's children are ``branches * i + 1`` and on."""
    place = torch.arange(slots, device=device)
    child = torch.where(place * branches + 1 < slots, place * branches + 1, -1)
    last_of_siblings = (place % branches == 0) | (place + 1 >= slots)
    sibling = torch.where(last_of_siblings, -1, place + 1)
    return {
        "tokens_BD": place.expand(batch, slots) * (vocabulary // slots),
        "child_BD": child.expand(batch, slots),
        "sibling_BD": sibling.expand(batch, slots),
        "target_BDV": torch.randn(batch, slots, vocabulary, device=device).softmax(dim=-1),
        "greedy_B": torch.full((batch,), greedy, device=device),
        "coins_BD": torch.rand(batch, slots + 1, device=device),
        "depth": 7,
    }


def cost(tokens_BD: Tensor, child_BD: Tensor, sibling_BD: Tensor, target_BDV: Tensor, **_: Any) -> Cost:
    """Every row of the target is read once."""
    moved = target_BDV.numel() * target_BDV.element_size() + 3 * tokens_BD.numel() * 8
    return Cost(bytes=moved, operations=3 * target_BDV.numel())


def kernel(**inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    from specflow_kernels.verify_tree.launching import verify_tree_triton

    return verify_tree_triton(**inputs)


OPERATOR = Operator(
    name="verify_tree",
    summary="greedy and target-only verification of trees",
    public=verify_tree,
    kernel=kernel,
    reference=verify_tree_reference,
    explain=explain,
    cost=cost,
    cases=(
        Case(
            name="SmolLM2-135M, 16 slots",
            make=lambda device: make(
                device, batch=8, slots=16, branches=2, vocabulary=49152, greedy=True
            ),
        ),
        Case(
            name="8B, 64 slots",
            make=lambda device: make(device, batch=8, slots=64, branches=4, vocabulary=151936, greedy=False),
        ),
    ),
)  # fmt: skip
