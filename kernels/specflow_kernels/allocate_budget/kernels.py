"""Triton kernel: one program per request counts, for each of its proposals, those that come before it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def allocate_kernel(survival, budget, lengths, requests, proposals, least, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr):
    b = tl.program_id(0)
    position = tl.arange(0, BLOCK_M)
    own = tl.load(survival + b.to(tl.int64) * proposals + position, mask=position < proposals, other=-1.0)
    ahead = tl.zeros((BLOCK_M,), tl.int32)
    for low in range(0, requests * proposals, BLOCK):
        i = low + tl.arange(0, BLOCK)
        other = tl.load(survival + i, mask=i < requests * proposals, other=-1.0)
        their_request, their_position = i // proposals, i % proposals
        earlier = (their_position[None, :] < position[:, None]) | (
            (their_position[None, :] == position[:, None]) & (their_request < b)[None, :]
        )
        before = (other[None, :] > own[:, None]) | ((other[None, :] == own[:, None]) & earlier)
        ahead += tl.sum((before & (other >= least)[None, :]).to(tl.int32), axis=1)
    chosen = (own >= least) & (ahead < tl.load(budget))
    tl.store(lengths + b, 1 + tl.sum(chosen.to(tl.int64), axis=0))
