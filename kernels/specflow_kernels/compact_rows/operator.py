"""Examples and cost of compaction and its inverse."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specflow_kernels.compact_rows import compact_rows, explain, explain_scatter, scatter_rows
from specflow_kernels.compact_rows.reference import compact_rows_reference, scatter_rows_reference
from specflow_kernels.cost import Cost
from specflow_kernels.operator import Case, Operator


def make(device: torch.device, *, batch: int, size: int, width: int) -> dict[str, Any]:
    return {
        "rows_BRH": torch.randn(batch, size, width, device=device, dtype=torch.bfloat16),
        "lengths_B": torch.arange(batch, device=device) % size + 1,
        "capacity": batch * size // 2,
    }


def make_scatter(device: torch.device, *, batch: int, size: int, width: int) -> dict[str, Any]:
    return {
        "rows_CH": torch.randn(batch * size // 2, width, device=device, dtype=torch.bfloat16),
        "lengths_B": torch.arange(batch, device=device) % size + 1,
        "size": size,
    }


def cost(rows_BRH: Tensor, lengths_B: Tensor, *, capacity: int) -> Cost:
    """Kept rows are read, all are written."""
    return Cost(bytes=2 * capacity * rows_BRH.shape[2] * rows_BRH.element_size() + 8 * capacity, operations=0)


def scatter_cost(rows_CH: Tensor, lengths_B: Tensor, *, size: int) -> Cost:
    written = lengths_B.shape[0] * size * rows_CH.shape[1]
    return Cost(bytes=(rows_CH.numel() + written) * rows_CH.element_size(), operations=0)


def kernel(**inputs: Any) -> tuple[Tensor, Tensor]:
    from specflow_kernels.compact_rows.launching import compact_rows_triton

    return compact_rows_triton(**inputs)


def scatter_kernel(**inputs: Any) -> Tensor:
    from specflow_kernels.compact_rows.launching import scatter_rows_triton

    return scatter_rows_triton(**inputs)


OPERATOR = Operator(
    name="compact_rows",
    summary="rows to verify, one behind the other",
    public=compact_rows,
    kernel=kernel,
    reference=compact_rows_reference,
    explain=explain,
    cost=cost,
    cases=(Case(name="64 requests of 8", make=lambda device: make(device, batch=64, size=8, width=4096)),),
)
SCATTER = Operator(
    name="scatter_rows",
    summary="compacted rows back to their requests",
    public=scatter_rows,
    kernel=scatter_kernel,
    reference=scatter_rows_reference,
    explain=explain_scatter,
    cost=scatter_cost,
    cases=(Case(name="64 requests of 8", make=lambda device: make_scatter(device, batch=64, size=8, width=4096)),),
)
