"""Examples and cost of allocation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specflow_kernels.allocate_budget import allocate_budget, explain
from specflow_kernels.allocate_budget.reference import allocate_budget_reference
from specflow_kernels.cost import Cost, bytes_of
from specflow_kernels.operator import Case, Operator


def make(device: torch.device, *, batch: int, proposals: int) -> dict[str, Any]:
    return {
        "survival_BM": torch.rand(batch, proposals, device=device).cumprod(dim=1),
        "budget": torch.full((), batch * proposals // 2, device=device),
    }


def cost(survival_BM: Tensor, budget: Tensor, **_: Any) -> Cost:
    """Every proposal against every other."""
    return Cost(bytes=bytes_of((survival_BM,)) + 8 * survival_BM.shape[0], operations=6 * survival_BM.numel() ** 2)


def kernel(**inputs: Any) -> Tensor:
    from specflow_kernels.allocate_budget.launching import allocate_budget_triton

    return allocate_budget_triton(**inputs)


OPERATOR = Operator(
    name="allocate_budget",
    summary="rows to verify per request, by survival",
    public=allocate_budget,
    kernel=kernel,
    reference=allocate_budget_reference,
    explain=explain,
    cost=cost,
    cases=(
        Case(name="32 requests of 7", make=lambda device: make(device, batch=32, proposals=7)),
        Case(name="256 requests of 15", make=lambda device: make(device, batch=256, proposals=15)),
    ),
)
