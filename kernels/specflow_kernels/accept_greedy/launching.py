"""The Triton kernel behind ``accept_greedy``."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow_kernels.accept_greedy.kernels import accept_kernel
from specflow_kernels.launching import launch, power_of_two


def accept_greedy_triton(draft_BM: Tensor, target_BR: Tensor) -> tuple[Tensor, Tensor]:
    """Same as the reference, in one launch. Shapes are checked by ``accept_greedy``."""
    draft_BM, target_BR = draft_BM.contiguous(), target_BR.contiguous()
    batch, proposals = draft_BM.shape
    accepted_B, bonus_B = (torch.empty(batch, dtype=torch.int64, device=draft_BM.device) for _ in range(2))
    launch(
        accept_kernel, (batch,), draft_BM, target_BR, accepted_B, bonus_B, draft_BM.stride(0), target_BR.stride(0),
        proposals, BLOCK=power_of_two(proposals, least=2),
    )  # fmt: skip
    return accepted_B, bonus_B
