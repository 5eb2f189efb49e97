"""What verification kernels share: a row's choice, and a draw from a row's weights by inverting their running sum."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def choice_kernel(scores, wanted, out, rows, vocabulary, BLOCK: tl.constexpr):
    """``out [B, R]``: the lowest of a row's largest, -1 with NaN. Requests that are not ``wanted`` are left alone."""
    request, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(wanted + request) != 0:
        most = float("-inf")
        choice = 0
        refused = 0
        for low in range(0, vocabulary, BLOCK):
            v = low + tl.arange(0, BLOCK)
            x = tl.load(scores + (request * rows + row) * vocabulary + v, mask=v < vocabulary, other=float("-inf"))
            x = x.to(tl.float32)
            refused = tl.maximum(refused, tl.max((x != x).to(tl.int32), axis=0))
            here = tl.max(x, axis=0)
            where = tl.min(tl.where((x == here) & (v < vocabulary), v, vocabulary), axis=0)
            choice = tl.where(here > most, where, choice)
            most = tl.maximum(most, here)
        tl.store(out + request * rows + row, tl.where(refused != 0, -1, choice).to(tl.int64))
