"""Triton kernel of :func:`specflow_kernels.accept_greedy.accept_greedy`: one program per request."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def _accept_kernel(
    draft: Any,
    target: Any,
    accepted: Any,
    bonus: Any,
    draft_stride: Any,
    target_stride: Any,
    proposals: Any,
    BLOCK: tl.constexpr,
) -> None:
    request = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    inside = i < proposals
    drafted = tl.load(draft + request * draft_stride + i, mask=inside, other=0)
    chosen = tl.load(target + request * target_stride + i, mask=inside, other=0)
    # The number accepted is the first disagreement; places behind the last proposal do not disagree.
    first = tl.min(tl.where(inside & (drafted != chosen), i, proposals), axis=0).to(tl.int64)
    tl.store(accepted + request, first)
    tl.store(bonus + request, tl.load(target + request * target_stride + first))


def accept_greedy_triton(draft_BM: Tensor, target_BR: Tensor) -> tuple[Tensor, Tensor]:
    """Same as the reference, in one launch. Shapes are checked by ``accept_greedy``."""
    draft_BM, target_BR = draft_BM.contiguous(), target_BR.contiguous()
    batch, proposals = draft_BM.shape
    accepted_B = torch.empty(batch, dtype=torch.int64, device=draft_BM.device)
    bonus_B = torch.empty(batch, dtype=torch.int64, device=draft_BM.device)
    if batch:
        _accept_kernel[(batch,)](
            draft_BM,
            target_BR,
            accepted_B,
            bonus_B,
            draft_BM.stride(0),
            target_BR.stride(0),
            proposals,
            BLOCK=max(2, triton.next_power_of_2(proposals)),
        )
    return accepted_B, bonus_B
