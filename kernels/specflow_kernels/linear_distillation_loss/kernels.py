"""Triton kernels: logits of a tile of rows and of the vocabulary are made, used and forgotten.

``statistics_kernel`` finds each row's log-sum of exponentials and its choice, ``terms_kernel`` the sums over the
vocabulary, ``slope_kernel`` the loss's slope for each logit of a slice of the vocabulary. The vocabulary is split among
programs; their partial results are summed by the caller in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def logits_tile(
    hidden, head, ids, m, v, rows, vocabulary, width, multiplier,
    soft_cap, CAPPED: tl.constexpr, RESTRICTED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_H: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``[BLOCK_M, BLOCK_V]`` fp32; -inf beyond the vocabulary. Row v of the head is ``ids[v]`` if ``RESTRICTED``."""
    real_m, real_v = m < rows, v < vocabulary
    place = v.to(tl.int64)
    if RESTRICTED:
        place = tl.load(ids + v, mask=real_v, other=0).to(tl.int64)
    logits = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)
    for low in range(0, width, BLOCK_H):
        h = low + tl.arange(0, BLOCK_H)
        x = tl.load(
            hidden + m.to(tl.int64)[:, None] * width + h[None, :], mask=real_m[:, None] & (h < width), other=0.0
        )
        w = tl.load(head + place[None, :] * width + h[:, None], mask=real_v & (h < width)[:, None], other=0.0)
        logits = tl.dot(x, w, logits, input_precision=PRECISION)
    logits *= multiplier
    if CAPPED:
        logits = soft_cap * (2.0 * tl.sigmoid(2.0 * logits / soft_cap) - 1.0)  # tanh
    return tl.where(real_v[None, :], logits, float("-inf"))


@triton.jit
def statistics_kernel(
    hidden, head, ids, labels, largest, sums, choices, reached,
    rows, vocabulary, width, multiplier, soft_cap, tiles,
    LABELLED: tl.constexpr, CAPPED: tl.constexpr, RESTRICTED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_H: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(1)
    label = tl.full((BLOCK_M,), -1, tl.int64)
    if LABELLED:
        label = tl.load(labels + m, mask=m < rows, other=-1)
    most = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    choice = tl.zeros((BLOCK_M,), tl.int32)
    at_label = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    for low in range(split * tiles * BLOCK_V, tl.minimum((split + 1) * tiles * BLOCK_V, vocabulary), BLOCK_V):
        v = low + tl.arange(0, BLOCK_V)
        logits = logits_tile(
            hidden, head, ids, m, v, rows, vocabulary, width, multiplier, soft_cap, CAPPED, RESTRICTED, BLOCK_M,
            BLOCK_V, BLOCK_H, PRECISION,
        )  # fmt: skip
        here = tl.max(logits, axis=1)
        where = tl.min(tl.where(logits == here[:, None], v[None, :], vocabulary), axis=1)
        choice = tl.where(here > most, where, choice)  # not at equality: the lowest of equals
        more = tl.maximum(most, here)
        total = total * tl.exp(most - more) + tl.sum(tl.exp(logits - more[:, None]), axis=1)
        most = more
        if LABELLED:
            at_label = tl.maximum(
                at_label, tl.max(tl.where(v[None, :] == label[:, None], logits, float("-inf")), axis=1)
            )
    place = split * rows + m
    tl.store(largest + place, most, mask=m < rows)
    tl.store(sums + place, total, mask=m < rows)
    tl.store(choices + place, choice, mask=m < rows)
    if LABELLED:
        tl.store(reached + place, at_label, mask=m < rows)


@triton.jit
def terms_kernel(
    hidden, head, teacher, teacher_head, ids, log_sums, teacher_log_sums, out,
    rows, vocabulary, width, teacher_width, multiplier, soft_cap, tiles, splits,
    CAPPED: tl.constexpr, RESTRICTED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_H: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``out [5, splits, M]``: KL, reverse KL, L1, entropy, and the sum of ``sign(q - p) * q`` that L1's slope needs."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(1)
    norm_q = tl.load(log_sums + m, mask=m < rows, other=0.0)
    norm_p = tl.load(teacher_log_sums + m, mask=m < rows, other=0.0)
    kl = tl.zeros((BLOCK_M,), tl.float32)
    reverse, l1, entropy, leaning = kl, kl, kl, kl
    for low in range(split * tiles * BLOCK_V, tl.minimum((split + 1) * tiles * BLOCK_V, vocabulary), BLOCK_V):
        v = low + tl.arange(0, BLOCK_V)
        log_q = logits_tile(
            hidden, head, ids, m, v, rows, vocabulary, width, multiplier, soft_cap, CAPPED, False, BLOCK_M, BLOCK_V,
            BLOCK_H, PRECISION,
        ) - norm_q[:, None]  # fmt: skip
        log_p = logits_tile(
            teacher, teacher_head, ids, m, v, rows, vocabulary, teacher_width, multiplier, soft_cap, CAPPED,
            RESTRICTED, BLOCK_M, BLOCK_V, BLOCK_H, PRECISION,
        ) - norm_p[:, None]  # fmt: skip
        p, q = tl.exp(log_p), tl.exp(log_q)
        real = (v < vocabulary)[None, :]  # beyond it, both logarithms are -inf
        ahead = tl.where(real, log_p - log_q, 0.0)
        kl += tl.sum(p * ahead, axis=1)
        reverse -= tl.sum(q * ahead, axis=1)
        entropy -= tl.sum(p * tl.where(real, log_p, 0.0), axis=1)
        l1 += tl.sum(tl.abs(p - q), axis=1)
        leaning += tl.sum(tl.where(q > p, q, tl.where(q < p, -q, 0.0)), axis=1)
    place = split * rows + m
    stride = splits * rows
    tl.store(out + place, kl, mask=m < rows)
    tl.store(out + stride + place, reverse, mask=m < rows)
    tl.store(out + 2 * stride + place, l1, mask=m < rows)
    tl.store(out + 3 * stride + place, entropy, mask=m < rows)
    tl.store(out + 4 * stride + place, leaning, mask=m < rows)


@triton.jit
def slope_kernel(
    hidden, head, teacher, teacher_head, ids, labels, log_sums,
    teacher_log_sums, reverse, leaning, grad_ce, grad_kl, grad_reverse, grad_l1,
    out, rows, vocabulary, width, teacher_width, multiplier, soft_cap, low,
    columns,
    LABELLED: tl.constexpr, TAUGHT: tl.constexpr, CAPPED: tl.constexpr, RESTRICTED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_H: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``out [M, columns]``: the slope for the product ``hidden . head[low + column]``."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    v = low + column
    real_m = m < rows
    logits = logits_tile(
        hidden, head, ids, m, v, rows, vocabulary, width, multiplier, soft_cap, CAPPED, False, BLOCK_M, BLOCK_V,
        BLOCK_H, PRECISION,
    )  # fmt: skip
    log_q = logits - tl.load(log_sums + m, mask=real_m, other=0.0)[:, None]
    q = tl.exp(log_q)
    slope = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)
    if LABELLED:
        label = tl.load(labels + m, mask=real_m, other=-1)
        weight = tl.load(grad_ce + m, mask=real_m, other=0.0)
        slope += weight[:, None] * (q - (v[None, :] == label[:, None]).to(tl.float32))
    if TAUGHT:
        log_p = logits_tile(
            teacher, teacher_head, ids, m, v, rows, vocabulary, teacher_width, multiplier, soft_cap, CAPPED,
            RESTRICTED, BLOCK_M, BLOCK_V, BLOCK_H, PRECISION,
        ) - tl.load(teacher_log_sums + m, mask=real_m, other=0.0)[:, None]  # fmt: skip
        p = tl.exp(log_p)
        behind = tl.where((v < vocabulary)[None, :], log_q - log_p, 0.0)
        slope += tl.load(grad_kl + m, mask=real_m, other=0.0)[:, None] * (q - p)
        mean = tl.load(reverse + m, mask=real_m, other=0.0)
        slope += tl.load(grad_reverse + m, mask=real_m, other=0.0)[:, None] * q * (behind - mean[:, None])
        side = tl.where(q > p, 1.0, tl.where(q < p, -1.0, 0.0)) - tl.load(leaning + m, mask=real_m, other=0.0)[:, None]
        slope += tl.load(grad_l1 + m, mask=real_m, other=0.0)[:, None] * q * side
    if CAPPED:
        bent = tl.where((v < vocabulary)[None, :], logits / soft_cap, 0.0)
        slope *= 1.0 - bent * bent
    slope *= multiplier
    place = m.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out + place, slope, mask=real_m[:, None] & (column < columns)[None, :])
