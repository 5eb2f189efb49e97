"""Examples and cost of greedy acceptance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specflow_kernels.accept_greedy import accept_greedy, explain
from specflow_kernels.accept_greedy.reference import accept_greedy_reference
from specflow_kernels.cost import Cost, bytes_of
from specflow_kernels.operator import Case, Operator


def make(device: torch.device, *, batch: int, proposals: int) -> dict[str, Any]:
    return {
        "draft_BM": torch.randint(2, (batch, proposals), device=device),
        "target_BR": torch.randint(2, (batch, proposals + 1), device=device),
    }


def cost(draft_BM: Tensor, target_BR: Tensor) -> Cost:
    return Cost(bytes=bytes_of((draft_BM, target_BR)) + 16 * draft_BM.shape[0], operations=0)


def kernel(**inputs: Any) -> tuple[Tensor, Tensor]:
    from specflow_kernels.accept_greedy.launching import accept_greedy_triton

    return accept_greedy_triton(**inputs)


OPERATOR = Operator(
    name="accept_greedy",
    summary="greedy acceptance of chains from the target's choices",
    public=accept_greedy,
    kernel=kernel,
    reference=accept_greedy_reference,
    explain=explain,
    cost=cost,
    cases=(
        Case(name="quickstart", make=lambda device: make(device, batch=23, proposals=5)),
        Case(name="256 requests of 15", make=lambda device: make(device, batch=256, proposals=15)),
    ),
)
