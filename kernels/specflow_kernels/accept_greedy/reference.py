"""Greedy acceptance in torch operations, for any device."""

from __future__ import annotations

import torch
from torch import Tensor


def accept_greedy_reference(draft_BM: Tensor, target_BR: Tensor) -> tuple[Tensor, Tensor]:
    """What ``accept_greedy`` computes."""
    agreed_BM = draft_BM == target_BR[:, : draft_BM.shape[1]]
    accepted_B = agreed_BM.to(torch.int64).cumprod(dim=1).sum(dim=1)
    return accepted_B, target_BR.gather(1, accepted_B.unsqueeze(1)).squeeze(1)
