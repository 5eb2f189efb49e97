"""Examples and cost of the sequential head's walk."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specflow_kernels.cost import Cost
from specflow_kernels.markov_walk import explain, markov_walk
from specflow_kernels.markov_walk.reference import markov_walk_reference
from specflow_kernels.markov_walk.walk import Walk
from specflow_kernels.operator import Case, Operator


def make(device: torch.device, *, batch: int, proposals: int, vocabulary: int, rank: int = 256) -> dict[str, Any]:
    dtype = torch.bfloat16
    return {
        "base_BMV": torch.randn(batch, proposals, vocabulary, device=device, dtype=dtype),
        "anchor_B": torch.randint(vocabulary, (batch,), device=device),
        "predecessors_Vr": torch.randn(vocabulary, rank, device=device, dtype=dtype),
        "successors_Vr": torch.randn(vocabulary, rank, device=device, dtype=dtype),
        "greedy_B": torch.zeros(batch, dtype=torch.bool, device=device),
        "temperature_B": torch.ones(batch, device=device),
        "seed_B": torch.arange(batch, device=device),
    }


def cost(base_BMV: Tensor, anchor_B: Tensor, predecessors_Vr: Tensor, successors_Vr: Tensor, **_: Any) -> Cost:
    """The successors' codebook is read at every step, since a step needs the token before it."""
    rank, proposals = successors_Vr.shape[1], base_BMV.shape[1]
    moved = base_BMV.numel() * (base_BMV.element_size() + 4)
    moved += proposals * successors_Vr.numel() * successors_Vr.element_size()
    return Cost(bytes=moved, operations=base_BMV.numel() * (2 * rank + 10))


def kernel(**inputs: Any) -> Walk:
    from specflow_kernels.markov_walk.launching import markov_walk_triton

    return markov_walk_triton(**inputs)


OPERATOR = Operator(
    name="markov_walk",
    summary="DSpark's sequential head, greedy or with Gumbel noise",
    public=markov_walk,
    kernel=kernel,
    reference=markov_walk_reference,
    explain=explain,
    cost=cost,
    cases=(
        Case(
            name="SmolLM2-135M",
            make=lambda device: make(
                device, batch=23, proposals=7, vocabulary=49152
            ),
        ),
        Case(name="8B", make=lambda device: make(device, batch=64, proposals=7, vocabulary=151936)),
    ),
)  # fmt: skip
