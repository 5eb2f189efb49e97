"""The Triton kernels behind ``verify_chain``."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow_kernels.draw_kernels import choice_kernel
from specflow_kernels.launching import launch, power_of_two
from specflow_kernels.verify_chain.kernels import chain_kernel

TILE = 4096


def verify_chain_triton(
    draft_BM: Tensor,
    target_BRV: Tensor,
    *,
    greedy_B: Tensor,
    coins_BR: Tensor,
    q_BMV: Tensor | None = None,
    judged_B: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Same as the reference, in two launches; shapes are checked by ``verify_chain``."""
    batch, rows, vocabulary = target_BRV.shape
    draft, target, coins = draft_BM.contiguous(), target_BRV.contiguous(), coins_BR.contiguous()
    greedy = greedy_B.to(torch.int8)
    choices = torch.empty((batch, rows), dtype=torch.int64, device=draft.device)
    accepted, following = (torch.empty(batch, dtype=torch.int64, device=draft.device) for _ in range(2))
    block = min(TILE, power_of_two(vocabulary, least=16))
    launch(choice_kernel, (batch, rows), target, greedy, choices, rows, vocabulary, BLOCK=block, warps=8)
    launch(
        chain_kernel, (batch,), draft, target, choices, greedy, coins,
        target if q_BMV is None else q_BMV.contiguous(), choices if judged_B is None else judged_B.contiguous(),
        accepted, following, draft.shape[1], rows, coins.shape[1], vocabulary,
        DRAWN=q_BMV is not None, CUT=judged_B is not None, BLOCK=block, warps=8,
    )  # fmt: skip
    return accepted, following
