"""Triton kernels of the candidate selector: one program per proposal's lattice, one per block's walk."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def lattice_kernel(
    unary, candidates, anchor, hidden, predecessors, successors, out, proposals, kept, rank,
    BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    n, j = tl.program_id(0).to(tl.int64), tl.program_id(1)
    k = tl.arange(0, BLOCK_K)
    here = (n * proposals + j) * kept + k
    after = tl.load(candidates + here, mask=k < kept, other=0)
    before = tl.load(candidates + here - kept, mask=k < tl.where(j > 0, kept, 0), other=0)
    if j == 0:
        before += tl.load(anchor + n)
    scores = tl.zeros((BLOCK_K, BLOCK_K), tl.float32)
    for low in range(0, rank, BLOCK_R):
        r = low + tl.arange(0, BLOCK_R)
        inside = (k < kept)[:, None] & (r < rank)[None, :]
        left = tl.load(predecessors + before[:, None] * rank + r[None, :], mask=inside, other=0.0).to(tl.float32)
        gate = tl.load(hidden + (n * proposals + j) * rank + r, mask=r < rank, other=0.0).to(tl.float32)
        right = tl.load(successors + after[:, None] * rank + r[None, :], mask=inside, other=0.0).to(tl.float32)
        scores = tl.dot(left * gate[None, :], tl.trans(right), scores, input_precision=PRECISION)
    scores += tl.load(unary + here, mask=k < kept, other=0.0).to(tl.float32)[None, :]
    place = (n * proposals + j) * kept * kept + k[:, None] * kept + k[None, :]
    tl.store(out + place, scores, mask=(k < kept)[:, None] & (k < kept)[None, :])


@triton.jit
def walk_kernel(lattice, candidates, greedy, temperature, coins, tokens, q, proposals, kept, BLOCK_K: tl.constexpr):
    n = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    greedily = tl.load(greedy + n).to(tl.int32)
    heat = tl.load(temperature + n)
    previous = 0
    refused = 0
    for j in range(0, proposals):
        at = ((n * proposals + j) * kept + previous) * kept + k
        scores = tl.load(lattice + at, mask=k < kept, other=float("-inf")).to(tl.float32)
        refused = tl.maximum(refused, tl.max((scores != scores).to(tl.int32), axis=0))
        largest = tl.max(scores, axis=0)
        first = tl.min(tl.where((scores == largest) & (k < kept), k, kept - 1), axis=0)
        weights = tl.where(k < kept, tl.exp((scores - largest) / heat), 0.0)
        total = tl.sum(weights, axis=0)
        coin = tl.load(coins + n * proposals + j)
        passed = tl.sum(((tl.cumsum(weights, axis=0) <= coin * total) & (k < kept)).to(tl.int32), axis=0)
        last = tl.max(tl.where(weights > 0.0, k, 0), axis=0)
        previous = tl.where(greedily != 0, first, tl.minimum(passed, last))
        share = tl.where(greedily != 0, (k == previous).to(tl.float32), weights / total)
        tl.store(q + (n * proposals + j) * kept + k, share, mask=k < kept)
        token = tl.load(candidates + (n * proposals + j) * kept + previous)
        tl.store(tokens + n * proposals + j, token)
    if refused != 0:
        for j in range(0, proposals):
            tl.store(tokens + n * proposals + j, -1)
            tl.store(q + (n * proposals + j) * kept + k, tl.zeros((BLOCK_K,), tl.float32), mask=k < kept)
