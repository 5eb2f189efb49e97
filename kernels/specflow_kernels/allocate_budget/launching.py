"""The Triton kernel behind ``allocate_budget``."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow_kernels.allocate_budget.kernels import allocate_kernel
from specflow_kernels.launching import launch, power_of_two

TILE = 256


def allocate_budget_triton(survival_BM: Tensor, budget: Tensor, *, least: float = 1e-6) -> Tensor:
    """Same as the reference, in one launch that reads the budget on the device."""
    survival = survival_BM.float().contiguous()
    batch, proposals = survival.shape
    lengths = torch.empty(batch, dtype=torch.int64, device=survival.device)
    launch(
        allocate_kernel, (batch,), survival, budget, lengths, batch, proposals, least,
        BLOCK_M=power_of_two(proposals, least=2), BLOCK=min(TILE, power_of_two(batch * proposals, least=16)),
    )  # fmt: skip
    return lengths
