"""Triton kernel: one program per layer, request and tile of columns moves the path's rows in their order."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def commit_kernel(cache, starts, path, layer_stride, places, width, BLOCK: tl.constexpr):
    layer, b = tl.program_id(0).to(tl.int64), tl.program_id(1)
    x = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    rows = cache + layer * layer_stride + tl.load(starts + b).to(tl.int64) * width
    to = 0
    for i in range(0, places):
        slot = tl.load(path + b * places + i)
        # Slots rise along a path, so no row that is still to be read lies where one is written.
        if slot > to:
            tl.store(rows + to * width + x, tl.load(rows + slot * width + x, mask=x < width), mask=x < width)
        to += (slot >= 0).to(tl.int32)
