"""Triton kernel of one step: correction, noise and choice over tiles of the vocabulary."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def step_kernel(
    base, features, successors, greedy, temperature, seeds, logits, largest, choices, requests, proposals, vocabulary,
    rank, step, splits,
    BLOCK_B: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_R: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``largest``, ``choices`` ``[B, splits]``: the best of each tile, with the lowest id of equals, -1 with NaN."""
    b = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    v = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    real_b, real_v = b < requests, v < vocabulary
    scores = tl.zeros((BLOCK_B, BLOCK_V), tl.float32)
    for low in range(0, rank, BLOCK_R):
        r = low + tl.arange(0, BLOCK_R)
        x = tl.load(features + b[:, None] * rank + r[None, :], mask=real_b[:, None] & (r < rank)[None, :], other=0.0)
        place = v.to(tl.int64)[None, :] * rank + r[:, None]
        w = tl.load(successors + place, mask=real_v[None, :] & (r < rank)[:, None], other=0.0)
        scores = tl.dot(x, w, scores, input_precision=PRECISION)
    inside = real_b[:, None] & real_v[None, :]
    row = (b.to(tl.int64) * proposals + step)[:, None] * vocabulary + v[None, :]
    scores += tl.load(base + row, mask=inside, other=0.0).to(tl.float32)
    tl.store(logits + row, scores, mask=inside)
    seed = tl.load(seeds + b, mask=real_b, other=0)
    offset = tl.zeros((BLOCK_B, BLOCK_V), tl.int64) + (step * vocabulary + v).to(tl.int64)[None, :]
    noise = -tl.log(-tl.log(tl.rand(tl.zeros((BLOCK_B, BLOCK_V), tl.int64) + seed[:, None], offset)))
    heat = tl.load(temperature + b, mask=real_b, other=1.0)
    greedily = tl.load(greedy + b, mask=real_b, other=1)
    scores = tl.where((greedily != 0)[:, None], scores, scores / heat[:, None] + noise)
    refused = tl.max(((scores != scores) & inside).to(tl.int32), axis=1)
    scores = tl.where(real_v[None, :], scores, float("-inf"))
    best = tl.max(scores, axis=1)
    choice = tl.min(tl.where((scores == best[:, None]) & real_v[None, :], v[None, :], vocabulary), axis=1)
    at = b * splits + tl.program_id(1)
    tl.store(largest + at, best, mask=real_b)
    tl.store(choices + at, tl.where(refused != 0, -1, choice), mask=real_b)
