"""Triton kernel of greedy acceptance: one program per request."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def accept_kernel(draft, target, accepted, bonus, draft_stride, target_stride, proposals, BLOCK: tl.constexpr):
    request = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    inside = i < proposals
    drafted = tl.load(draft + request * draft_stride + i, mask=inside, other=0)
    chosen = tl.load(target + request * target_stride + i, mask=inside, other=0)
    # The number accepted is the first disagreement; places behind the last proposal do not disagree.
    first = tl.min(tl.where(inside & (drafted != chosen), i, proposals), axis=0).to(tl.int64)
    tl.store(accepted + request, first)
    tl.store(bonus + request, tl.load(target + request * target_stride + first))
