"""Triton kernels of training-time test's attention: causal tiles over depth 0, then the row's own chain element-wise.

Scores are in base 2: ``scale`` holds ``log2(e) / sqrt(d)``. The backward pass uses no atomics.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specflow_kernels.row_kernels import load_rows, store_rows


@triton.jit
def causal_scores(q, k, t, s, first, tokens, scale, PRECISION: tl.constexpr):
    """``[queries, keys]`` of rows ``t`` against depth-0 rows ``s`` of the same document, themselves included."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    seen = (s[None, :] <= t[:, None]) & (s[None, :] >= first[:, None]) & (t < tokens)[:, None]
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def forward_kernel(
    query, key, value, chain_key, chain_value, first_of, out, log_sums, tokens, depths, heads, groups, scale,
    RATIO: tl.constexpr, D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    g = head // RATIO
    t = tile * BLOCK_T + tl.arange(0, BLOCK_T)
    real = t < tokens
    first = tl.load(first_of + t, mask=real, other=0)
    place = t.to(tl.int64) * heads + head
    q = load_rows(query, place, real, D, BLOCK_D)

    # The row itself and its chain first, so that the running maximum is finite before tiles of other documents.
    own = t.to(tl.int64) * groups + g
    wide = q.to(tl.float32)
    most = tl.sum(wide * load_rows(key, own, real, D, BLOCK_D).to(tl.float32), axis=1) * scale
    total = tl.full((BLOCK_T,), 1.0, tl.float32)
    mixed = load_rows(value, own, real, D, BLOCK_D).to(tl.float32)
    for depth in range(0, depths):
        link = (t + depth * tokens).to(tl.int64) * groups + g
        score = tl.sum(wide * load_rows(chain_key, link, real, D, BLOCK_D).to(tl.float32), axis=1) * scale
        more = tl.maximum(most, score)
        shrink, weight = tl.exp2(most - more), tl.exp2(score - more)
        total = total * shrink + weight
        mixed = mixed * shrink[:, None] + weight[:, None] * load_rows(chain_value, link, real, D, BLOCK_D).to(
            tl.float32
        )
        most = more

    begin = tl.load(first_of + tile * BLOCK_T)
    for low in range(begin, tl.minimum((tile + 1) * BLOCK_T, tokens), BLOCK_T):
        s = low + tl.arange(0, BLOCK_T)
        there = s.to(tl.int64) * groups + g
        k = load_rows(key, there, s < tokens, D, BLOCK_D)
        scores = causal_scores(q, k, t, s, first, tokens, scale, PRECISION)
        scores = tl.where(s[None, :] == t[:, None], float("-inf"), scores)  # counted above
        larger = tl.maximum(most, tl.max(scores, axis=1))
        weights = tl.exp2(scores - larger[:, None])
        smaller = tl.exp2(most - larger)
        total = total * smaller + tl.sum(weights, axis=1)
        v = load_rows(value, there, s < tokens, D, BLOCK_D)
        mixed = mixed * smaller[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        most = larger
    store_rows(out, place, real, mixed / total[:, None], D, BLOCK_D)
    tl.store(log_sums + place, most + tl.log2(total), mask=real)


@triton.jit
def query_kernel(
    query, key, value, chain_key, chain_value, first_of, out, log_sums, grad, d_query, deltas, tokens, depths, heads,
    groups, scale, natural_scale,
    RATIO: tl.constexpr, D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    g = head // RATIO
    t = tile * BLOCK_T + tl.arange(0, BLOCK_T)
    real = t < tokens
    first = tl.load(first_of + t, mask=real, other=0)
    place = t.to(tl.int64) * heads + head
    q, upstream = load_rows(query, place, real, D, BLOCK_D), load_rows(grad, place, real, D, BLOCK_D)
    log_sum = tl.load(log_sums + place, mask=real, other=float("inf"))
    wide, pull = q.to(tl.float32), upstream.to(tl.float32)
    delta = tl.sum(load_rows(out, place, real, D, BLOCK_D).to(tl.float32) * pull, axis=1)
    tl.store(deltas + place, delta, mask=real)
    d_q = tl.zeros((BLOCK_T, BLOCK_D), tl.float32)
    for depth in range(0, depths):
        link = (t + depth * tokens).to(tl.int64) * groups + g
        linked = load_rows(chain_key, link, real, D, BLOCK_D).to(tl.float32)
        weight = tl.exp2(tl.sum(wide * linked, axis=1) * scale - log_sum)
        gain = tl.sum(pull * load_rows(chain_value, link, real, D, BLOCK_D).to(tl.float32), axis=1)
        d_q += (weight * (gain - delta) * natural_scale)[:, None] * linked
    begin = tl.load(first_of + tile * BLOCK_T)
    for low in range(begin, tl.minimum((tile + 1) * BLOCK_T, tokens), BLOCK_T):
        s = low + tl.arange(0, BLOCK_T)
        there = s.to(tl.int64) * groups + g
        k, v = load_rows(key, there, s < tokens, D, BLOCK_D), load_rows(value, there, s < tokens, D, BLOCK_D)
        weights = tl.exp2(causal_scores(q, k, t, s, first, tokens, scale, PRECISION) - log_sum[:, None])
        slope = weights * (tl.dot(upstream, tl.trans(v), input_precision=PRECISION) - delta[:, None])
        d_q += tl.dot((slope * natural_scale).to(k.dtype), k, input_precision=PRECISION)
    store_rows(d_query, place, real, d_q, D, BLOCK_D)


@triton.jit
def key_kernel(
    query, key, value, first_of, last_of, log_sums, deltas, grad, d_key, d_value, tokens, heads, groups, scale,
    natural_scale,
    RATIO: tl.constexpr, D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of depth-0 keys and values, from the rows behind it in its last document."""
    tile, g = tl.program_id(0), tl.program_id(1)
    s = tile * BLOCK_T + tl.arange(0, BLOCK_T)
    there = s.to(tl.int64) * groups + g
    k, v = load_rows(key, there, s < tokens, D, BLOCK_D), load_rows(value, there, s < tokens, D, BLOCK_D)
    d_k = tl.zeros((BLOCK_T, BLOCK_D), tl.float32)
    d_v = tl.zeros((BLOCK_T, BLOCK_D), tl.float32)
    end = tl.load(last_of + tl.minimum((tile + 1) * BLOCK_T, tokens) - 1)
    for low in range(tile * BLOCK_T, end, BLOCK_T):
        t = low + tl.arange(0, BLOCK_T)
        real = t < tokens
        first = tl.load(first_of + t, mask=real, other=0)
        for h in range(0, RATIO):
            place = t.to(tl.int64) * heads + g * RATIO + h
            q, upstream = load_rows(query, place, real, D, BLOCK_D), load_rows(grad, place, real, D, BLOCK_D)
            log_sum = tl.load(log_sums + place, mask=real, other=float("inf"))
            delta = tl.load(deltas + place, mask=real, other=0.0)
            weights = tl.exp2(causal_scores(q, k, t, s, first, tokens, scale, PRECISION) - log_sum[:, None])
            d_v += tl.dot(tl.trans(weights.to(upstream.dtype)), upstream, input_precision=PRECISION)
            slope = weights * (tl.dot(upstream, tl.trans(v), input_precision=PRECISION) - delta[:, None])
            d_k += tl.dot(tl.trans((slope * natural_scale).to(q.dtype)), q, input_precision=PRECISION)
    store_rows(d_key, there, s < tokens, d_k, D, BLOCK_D)
    store_rows(d_value, there, s < tokens, d_v, D, BLOCK_D)


@triton.jit
def chain_kernel(
    query, chain_key, chain_value, log_sums, deltas, grad, d_key, d_value, tokens, heads, groups, scale, natural_scale,
    RATIO: tl.constexpr, D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Gradients of one depth of the chains: only the row itself sees it, with all heads of the key head."""
    tile, g, depth = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    t = tile * BLOCK_T + tl.arange(0, BLOCK_T)
    real = t < tokens
    link = (t + depth * tokens).to(tl.int64) * groups + g
    k = load_rows(chain_key, link, real, D, BLOCK_D).to(tl.float32)
    v = load_rows(chain_value, link, real, D, BLOCK_D).to(tl.float32)
    d_k = tl.zeros((BLOCK_T, BLOCK_D), tl.float32)
    d_v = tl.zeros((BLOCK_T, BLOCK_D), tl.float32)
    for h in range(0, RATIO):
        place = t.to(tl.int64) * heads + g * RATIO + h
        q = load_rows(query, place, real, D, BLOCK_D).to(tl.float32)
        pull = load_rows(grad, place, real, D, BLOCK_D).to(tl.float32)
        log_sum = tl.load(log_sums + place, mask=real, other=float("inf"))
        delta = tl.load(deltas + place, mask=real, other=0.0)
        weight = tl.exp2(tl.sum(q * k, axis=1) * scale - log_sum)
        d_v += weight[:, None] * pull
        d_k += (weight * (tl.sum(pull * v, axis=1) - delta) * natural_scale)[:, None] * q
    store_rows(d_key, link, real, d_k, D, BLOCK_D)
    store_rows(d_value, link, real, d_v, D, BLOCK_D)
