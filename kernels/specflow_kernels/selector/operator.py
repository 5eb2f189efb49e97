"""Examples and cost of the candidate selector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specflow_kernels.cost import Cost, bytes_of
from specflow_kernels.operator import Case, Operator
from specflow_kernels.selector import explain_lattice, explain_walk, selector_lattice, selector_walk
from specflow_kernels.selector.reference import selector_lattice_reference, selector_walk_reference


def make_lattice(device: torch.device, *, blocks: int, proposals: int, kept: int, vocabulary: int) -> dict[str, Any]:
    rank, dtype = 256, torch.bfloat16
    return {
        "unary_NMK": torch.randn(blocks, proposals, kept, device=device),
        "candidates_NMK": torch.randint(vocabulary, (blocks, proposals, kept), device=device),
        "anchor_N": torch.randint(vocabulary, (blocks,), device=device),
        "hidden_NMr": torch.randn(blocks, proposals, rank, device=device, dtype=dtype),
        "predecessors_Vr": torch.randn(vocabulary, rank, device=device, dtype=dtype),
        "successors_Vr": torch.randn(vocabulary, rank, device=device, dtype=dtype),
    }


def make_walk(device: torch.device, *, blocks: int, proposals: int, kept: int) -> dict[str, Any]:
    return {
        "lattice_NMKK": torch.randn(blocks, proposals, kept, kept, device=device),
        "candidates_NMK": torch.randint(32000, (blocks, proposals, kept), device=device),
        "greedy_N": torch.zeros(blocks, dtype=torch.bool, device=device),
        "temperature_N": torch.ones(blocks, device=device),
        "coins_NM": torch.rand(blocks, proposals, device=device),
    }


def lattice_cost(
    unary_NMK: Tensor, candidates_NMK: Tensor, anchor_N: Tensor, hidden_NMr: Tensor, predecessors_Vr: Tensor,
    successors_Vr: Tensor,
) -> Cost:  # fmt: skip
    """Two codebook rows for every candidate."""
    rank, kept = hidden_NMr.shape[2], candidates_NMK.shape[2]
    rows = 2 * candidates_NMK.numel() * rank * predecessors_Vr.element_size()
    moved = bytes_of((unary_NMK, candidates_NMK, hidden_NMr)) + rows + 4 * candidates_NMK.numel() * kept
    return Cost(bytes=moved, operations=2 * candidates_NMK.numel() * kept * rank)


def walk_cost(lattice_NMKK: Tensor, candidates_NMK: Tensor, **_: Any) -> Cost:
    """One row of each lattice."""
    return Cost(
        bytes=candidates_NMK.numel() * (4 + 4) + 16 * lattice_NMKK.shape[0], operations=8 * candidates_NMK.numel()
    )


def lattice_kernel(**inputs: Any) -> Tensor:
    from specflow_kernels.selector.launching import selector_lattice_triton

    return selector_lattice_triton(**inputs)


def walk_kernel(**inputs: Any) -> tuple[Tensor, Tensor]:
    from specflow_kernels.selector.launching import selector_walk_triton

    return selector_walk_triton(**inputs)


LATTICE = Operator(
    name="selector_lattice",
    summary="scores of all pairs of neighbouring candidates",
    public=selector_lattice,
    kernel=lattice_kernel,
    reference=selector_lattice_reference,
    explain=explain_lattice,
    cost=lattice_cost,
    cases=(
        Case(
            name="SmolLM2-135M",
            make=lambda device: make_lattice(device, blocks=23, proposals=5, kept=16, vocabulary=49152),
        ),
        Case(
            name="8B",
            make=lambda device: make_lattice(device, blocks=64, proposals=15, kept=16, vocabulary=151936),
        ),
    ),
)
WALK = Operator(
    name="selector_walk",
    summary="greedy or sampled walk over the candidates",
    public=selector_walk,
    kernel=walk_kernel,
    reference=selector_walk_reference,
    explain=explain_walk,
    cost=walk_cost,
    cases=(Case(name="64 blocks of 16", make=lambda device: make_walk(device, blocks=64, proposals=15, kept=16)),),
)
