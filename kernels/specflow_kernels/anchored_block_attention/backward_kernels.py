"""Triton kernels, backward pass: no atomics, so results repeat bit for bit.

``block_kernel``: one program per block and key head gives the gradients of its queries and of its own keys and values.
``context_kernel``: one program per tile of context rows and key head walks over the blocks that see the tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specflow_kernels.anchored_block_attention.forward_kernels import context_scores, own_scores
from specflow_kernels.row_kernels import load_rows, store_rows


@triton.jit
def block_kernel(
    query, key, value, context_key, context_value, start_of, visible_of,
    out, log_sums, grad, d_query, d_key, d_value, deltas,
    groups, window, scale, natural_scale,
    R: tl.constexpr, B: tl.constexpr, RATIO: tl.constexpr, D: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    n, g = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start, visible = tl.load(start_of + n).to(tl.int64), tl.load(visible_of + n).to(tl.int32)
    b = tl.arange(0, BLOCK_B)
    own = (n * B + b) * groups + g
    d_own_k = tl.zeros((BLOCK_B, BLOCK_D), tl.float32)
    d_own_v = tl.zeros((BLOCK_B, BLOCK_D), tl.float32)
    for tile in range(0, R * RATIO, BLOCK_Q):
        i = tile + tl.arange(0, BLOCK_Q)
        real = i < R * RATIO
        place = (n * R + i // RATIO) * (groups * RATIO) + g * RATIO + i % RATIO
        row = tl.where(real, B - R + i // RATIO, 0)
        q, upstream = load_rows(query, place, real, D, BLOCK_D), load_rows(grad, place, real, D, BLOCK_D)
        # Rows that do not exist get weights of zero: 2 ** (finite - inf).
        log_sum = tl.load(log_sums + place, mask=real, other=float("inf"))
        mixed = load_rows(out, place, real, D, BLOCK_D)
        delta = tl.sum(mixed.to(tl.float32) * upstream.to(tl.float32), axis=1)
        tl.store(deltas + place, delta, mask=real)

        # Loaded for every tile, so that no register holds them while the context goes by.
        own_k, own_v = load_rows(key, own, b < B, D, BLOCK_D), load_rows(value, own, b < B, D, BLOCK_D)
        near = own_scores(q, own_k, row, b, scale, window, B, CAUSAL, WINDOWED, PRECISION)
        own_weights = tl.exp2(near - log_sum[:, None])
        d_own_v += tl.dot(tl.trans(own_weights.to(upstream.dtype)), upstream, input_precision=PRECISION)
        own_slope = own_weights * (tl.dot(upstream, tl.trans(own_v), input_precision=PRECISION) - delta[:, None])
        own_slope = (own_slope * natural_scale).to(q.dtype)
        d_own_k += tl.dot(tl.trans(own_slope), q, input_precision=PRECISION)
        d_q = tl.dot(own_slope, own_k, input_precision=PRECISION)

        first = 0
        if WINDOWED:
            first = tl.maximum(visible + (B - R) + tile // RATIO - window + 1, 0)
        for low in range(first, visible, BLOCK_K):
            c = low + tl.arange(0, BLOCK_K)
            there = (start + c) * groups + g
            k = load_rows(context_key, there, c < visible, D, BLOCK_D)
            v = load_rows(context_value, there, c < visible, D, BLOCK_D)
            scores = context_scores(q, k, row, c, visible, scale, window, WINDOWED, PRECISION)
            weights = tl.exp2(scores - log_sum[:, None])
            slope = weights * (tl.dot(upstream, tl.trans(v), input_precision=PRECISION) - delta[:, None])
            d_q += tl.dot((slope * natural_scale).to(k.dtype), k, input_precision=PRECISION)
        store_rows(d_query, place, real, d_q, D, BLOCK_D)
    store_rows(d_key, own, b < B, d_own_k, D, BLOCK_D)
    store_rows(d_value, own, b < B, d_own_v, D, BLOCK_D)


@triton.jit
def context_kernel(
    query, context_key, context_value, start_of, visible_of, first_block,
    last_block, log_sums, deltas, grad, d_key, d_value,
    context_rows, groups, window, scale, natural_scale,
    R: tl.constexpr, B: tl.constexpr, RATIO: tl.constexpr, D: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, WINDOWED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    tile, g = tl.program_id(0).to(tl.int64), tl.program_id(1)
    s = tile * BLOCK_K + tl.arange(0, BLOCK_K)
    there = s * groups + g
    k = load_rows(context_key, there, s < context_rows, D, BLOCK_D)
    v = load_rows(context_value, there, s < context_rows, D, BLOCK_D)
    d_k = tl.zeros((BLOCK_K, BLOCK_D), tl.float32)
    d_v = tl.zeros((BLOCK_K, BLOCK_D), tl.float32)
    for n in range(tl.load(first_block + tile), tl.load(last_block + tile)):
        start, visible = tl.load(start_of + n).to(tl.int64), tl.load(visible_of + n).to(tl.int32)
        low = start
        if WINDOWED:
            low += tl.maximum(visible + (B - R) - window + 1, 0)
        if (low < (tile + 1) * BLOCK_K) & (start + visible > tile * BLOCK_K):
            c = (s - start).to(tl.int32)
            for first in range(0, R * RATIO, BLOCK_Q):
                i = first + tl.arange(0, BLOCK_Q)
                real = i < R * RATIO
                place = (n * R + (i // RATIO).to(tl.int64)) * (groups * RATIO) + g * RATIO + i % RATIO
                row = tl.where(real, B - R + i // RATIO, 0)
                q, upstream = load_rows(query, place, real, D, BLOCK_D), load_rows(grad, place, real, D, BLOCK_D)
                log_sum = tl.load(log_sums + place, mask=real, other=float("inf"))
                delta = tl.load(deltas + place, mask=real, other=0.0)
                scores = context_scores(q, k, row, c, visible, scale, window, WINDOWED, PRECISION)
                weights = tl.exp2(scores - log_sum[:, None])
                d_v += tl.dot(tl.trans(weights.to(upstream.dtype)), upstream, input_precision=PRECISION)
                slope = weights * (tl.dot(upstream, tl.trans(v), input_precision=PRECISION) - delta[:, None])
                d_k += tl.dot(tl.trans((slope * natural_scale).to(q.dtype)), q, input_precision=PRECISION)
    store_rows(d_key, there, s < context_rows, d_k, D, BLOCK_D)
    store_rows(d_value, there, s < context_rows, d_v, D, BLOCK_D)
