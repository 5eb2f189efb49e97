"""Triton kernel, forward pass: one program per block, key head and tile of its query rows.

Scores are in base 2: ``scale`` holds ``log2(e) / sqrt(d)``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specflow_kernels.row_kernels import load_rows, store_rows


@triton.jit
def own_scores(
    q, k, row, b, scale, window, B: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``[queries, BLOCK_B]`` against the rows of the own block; ``row`` is a query's row in the block."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    seen = (b < B)[None, :] & (row >= 0)[:, None]
    if CAUSAL:
        seen = seen & (b[None, :] <= row[:, None])
    if WINDOWED:
        seen = seen & (row[:, None] - b[None, :] < window)
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def context_scores(
    q, k, row, c, visible, scale, window, WINDOWED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """``[queries, BLOCK_K]`` against the context's positions ``c`` of the document."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    seen = ((c >= 0) & (c < visible))[None, :] & (row >= 0)[:, None]
    if WINDOWED:
        seen = seen & (visible + row[:, None] - c[None, :] < window)
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def forward_kernel(
    query, key, value, context_key, context_value, start_of, visible_of,
    out, log_sums, groups, window, scale,
    R: tl.constexpr, B: tl.constexpr, RATIO: tl.constexpr, D: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    n, g = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start, visible = tl.load(start_of + n).to(tl.int64), tl.load(visible_of + n).to(tl.int32)
    i = tl.program_id(2) * BLOCK_Q + tl.arange(0, BLOCK_Q)  # query rows that share the key head
    real = i < R * RATIO
    place = (n * R + i // RATIO) * (groups * RATIO) + g * RATIO + i % RATIO
    row = B - R + i // RATIO
    q = load_rows(query, place, real, D, BLOCK_D)

    # The own block first: every row sees itself, so the running maximum is finite from here on.
    b = tl.arange(0, BLOCK_B)
    own = (n * B + b) * groups + g
    own_k = load_rows(key, own, b < B, D, BLOCK_D)
    near = own_scores(q, own_k, tl.where(real, row, 0), b, scale, window, B, CAUSAL, WINDOWED, PRECISION)
    most = tl.max(near, axis=1)
    own_weights = tl.exp2(near - most[:, None])
    total = tl.sum(own_weights, axis=1)
    own_v = load_rows(value, own, b < B, D, BLOCK_D)
    mixed = tl.dot(own_weights.to(own_v.dtype), own_v, input_precision=PRECISION)

    first = 0
    if WINDOWED:  # rows before what the first query row sees are nobody's
        first = tl.maximum(visible + (B - R) + (tl.program_id(2) * BLOCK_Q) // RATIO - window + 1, 0)
    for low in range(first, visible, BLOCK_K):
        c = low + tl.arange(0, BLOCK_K)
        there = (start + c) * groups + g
        k = load_rows(context_key, there, c < visible, D, BLOCK_D)
        scores = context_scores(q, k, tl.where(real, row, 0), c, visible, scale, window, WINDOWED, PRECISION)
        more = tl.maximum(most, tl.max(scores, axis=1))
        weights = tl.exp2(scores - more[:, None])
        shrink = tl.exp2(most - more)
        total = total * shrink + tl.sum(weights, axis=1)
        v = load_rows(context_value, there, c < visible, D, BLOCK_D)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        most = more
    store_rows(out, place, real, mixed / total[:, None], D, BLOCK_D)
    tl.store(log_sums + place, most + tl.log2(total), mask=real)
