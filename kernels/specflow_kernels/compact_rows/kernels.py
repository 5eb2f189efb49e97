"""Triton kernels: one program per row that is written and tile of its columns."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def compact_kernel(rows, ends, out, places, requests, size, width, BLOCK_B: tl.constexpr, BLOCK_H: tl.constexpr):
    c = tl.program_id(0)
    b = tl.arange(0, BLOCK_B)
    end = tl.load(ends + b, mask=b < requests, other=0)
    total = tl.max(end, axis=0)
    request = tl.sum(((end <= c) & (b < requests)).to(tl.int32), axis=0)
    start = tl.max(tl.where(b < request, end, 0), axis=0)
    kept = c < total
    place = request.to(tl.int64) * size + (c - start)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    row = tl.load(rows + place * width + h, mask=h < tl.where(kept, width, 0), other=0)
    tl.store(out + c.to(tl.int64) * width + h, row, mask=h < width)
    if tl.program_id(1) == 0:
        tl.store(places + c, tl.where(kept, place, -1))


@triton.jit
def scatter_kernel(rows, lengths, ends, out, capacity, size, width, BLOCK_H: tl.constexpr):
    b, r = tl.program_id(0).to(tl.int64), tl.program_id(1)
    length = tl.load(lengths + b)
    source = tl.load(ends + b) - length + r
    h = tl.program_id(2) * BLOCK_H + tl.arange(0, BLOCK_H)
    columns = tl.where((r < length) & (source < capacity), width, 0)
    row = tl.load(rows + source * width + h, mask=h < columns, other=0)
    tl.store(out + (b * size + r) * width + h, row, mask=h < width)
