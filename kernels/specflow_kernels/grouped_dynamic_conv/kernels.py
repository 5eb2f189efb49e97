"""Triton kernels of the grouped dynamic convolution, forward and backward; sums over rows are made in a fixed order."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def forward_kernel(
    x, base, delta, out, block, width, groups, TAPS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """One program per row and tile of channels; ``SIZE`` channels of a group."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < width
    total = tl.zeros((BLOCK,), tl.float32)
    for tap in tl.static_range(TAPS):
        columns = tl.where(row % block >= tap, width, 0)  # nothing from before the block
        here = tl.load(x + (row - tap) * width + c, mask=c < columns, other=0.0).to(tl.float32)
        factor = tl.load(base + tap * width + c, mask=inside, other=0.0).to(tl.float32)
        factor += tl.load(delta + (row * TAPS + tap) * groups + c // SIZE, mask=inside, other=0.0).to(tl.float32)
        total += factor * here
    tl.store(out + row * width + c, total, mask=inside)


@triton.jit
def backward_kernel(
    x, base, delta, grad, d_x, d_base, d_delta, rows, block, width, groups, per_program,
    TAPS: tl.constexpr, SIZE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per chunk of rows and tile of channels. ``d_base [chunks, taps, H]`` is summed by the caller."""
    chunk = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tap = tl.arange(0, BLOCK_T)
    real = (tap < TAPS)[:, None] & (c < width)[None, :]
    at_base = tap[:, None] * width + c[None, :]
    fixed = tl.load(base + at_base, mask=real, other=0.0).to(tl.float32)
    d_fixed = tl.zeros((BLOCK_T, BLOCK), tl.float32)
    g = tl.program_id(1) * (BLOCK // SIZE) + tl.arange(0, BLOCK // SIZE)
    for row in range(chunk * per_program, tl.minimum((chunk + 1) * per_program, rows)):
        place = row % block
        pull = tl.load(grad + row * width + c, mask=c < width, other=0.0).to(tl.float32)
        before = real & (place >= tap)[:, None]
        here = tl.load(x + (row - tap)[:, None] * width + c[None, :], mask=before, other=0.0).to(tl.float32)
        product = pull[None, :] * here
        d_fixed += product
        of_group = tl.sum(tl.reshape(product, (BLOCK_T, BLOCK // SIZE, SIZE)), axis=2)
        at_delta = (row * TAPS + tap)[:, None] * groups + g[None, :]
        tl.store(d_delta + at_delta, of_group, mask=(tap < TAPS)[:, None] & (g < groups)[None, :])
        # The rows that this one reached, by the tap that reached them.
        after = real & (place + tap < block)[:, None]
        factor = tl.load(
            delta + ((row + tap) * TAPS + tap)[:, None] * groups + (c // SIZE)[None, :], mask=after, other=0.0
        ).to(tl.float32)
        their = tl.load(grad + (row + tap)[:, None] * width + c[None, :], mask=after, other=0.0).to(tl.float32)
        tl.store(d_x + row * width + c, tl.sum((fixed + factor) * their, axis=0), mask=c < width)
    tl.store(d_base + chunk * TAPS * width + at_base, d_fixed, mask=real)
