"""Allocation by sorting: what the kernel must equal."""

from __future__ import annotations

import torch
from torch import Tensor


def allocate_budget_reference(survival_BM: Tensor, budget: Tensor, *, least: float = 1e-6) -> Tensor:
    """``[B]`` int64; arguments as in ``allocate_budget``."""
    batch, proposals = survival_BM.shape
    # Positions first: a stable sort by survival then leaves equal ones in the order (position, request).
    by_position = survival_BM.T.reshape(-1)
    usable = torch.where(by_position >= least, by_position, -1.0)  # NaN is not usable either
    order = usable.sort(descending=True, stable=True).indices
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel(), device=order.device)
    chosen = (rank < budget) & (usable > 0)
    return chosen.view(proposals, batch).sum(dim=0) + 1
