"""Examples and cost of committing a path."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specflow_kernels.commit_path import commit_path, explain
from specflow_kernels.commit_path.reference import commit_path_reference
from specflow_kernels.cost import Cost
from specflow_kernels.operator import Case, Operator


def make(device: torch.device, *, layers: int, batch: int, slots: int, places: int, width: int) -> dict[str, Any]:
    """Keys and values of all layers; every path takes each second slot."""
    path = torch.arange(places, device=device) * 2
    return {
        "cache_LTX": torch.randn(2 * layers, batch * slots, width, device=device, dtype=torch.bfloat16),
        "start_B": torch.arange(batch, device=device) * slots,
        "path_BP": torch.where(path < slots, path, -1).expand(batch, places),
    }


def cost(cache_LTX: Tensor, start_B: Tensor, path_BP: Tensor) -> Cost:
    """Every row of a path but the anchor's is read and written."""
    moved = int((path_BP[:, 1:] > 0).sum())
    return Cost(bytes=2 * moved * cache_LTX.shape[0] * cache_LTX.shape[2] * cache_LTX.element_size(), operations=0)


def kernel(**inputs: Any) -> None:
    from specflow_kernels.commit_path.launching import commit_path_triton

    commit_path_triton(**inputs)


OPERATOR = Operator(
    name="commit_path",
    summary="rows of an accepted path to the front of the cache, all layers at once",
    public=commit_path,
    kernel=kernel,
    reference=commit_path_reference,
    explain=explain,
    cost=cost,
    cases=(
        Case(
            name="SmolLM2-135M",
            make=lambda device: make(device, layers=30, batch=8, slots=16, places=6, width=192),
        ),
        Case(
            name="8B",
            make=lambda device: make(device, layers=36, batch=32, slots=64, places=8, width=1024),
        ),
    ),
)
