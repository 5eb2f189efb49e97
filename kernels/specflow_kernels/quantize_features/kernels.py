"""Triton kernels: one program per row. e4m3 codes are made and read by their bits, which sm_80 has no units for."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def nearest(x):
    """The nearest integer, ties to even, of magnitudes below 2 ** 22."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def quantize_kernel(rows, codes, scales, width, FP8: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    largest_bits = 0
    for low in range(0, width, BLOCK):
        h = low + tl.arange(0, BLOCK)
        x = tl.load(rows + row * width + h, mask=h < width, other=0.0).to(tl.float32)
        # Magnitudes are in the order of their bits, NaN above all.
        bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        largest_bits = tl.maximum(largest_bits, tl.max(bits, axis=0))
    good = largest_bits <= 0x7F000000  # 2 ** 127
    largest_bits = tl.where(good, largest_bits, 0x3F800000)
    if FP8:
        # The least power of two whose 448-fold (1.75 * 2 ** 8) is at least the largest, from 2 ** -126 on.
        capped = tl.maximum(largest_bits, 0x04E00000)
        scale_bits = ((capped >> 23) - 8 + ((capped & 0x7FFFFF) > 0x600000).to(tl.int32)) << 23
    else:
        quotient = tl.div_rn(largest_bits.to(tl.float32, bitcast=True), 127.0)
        scale_bits = tl.maximum((quotient.to(tl.int32, bitcast=True) + 0xFFFF) & -65536, 0x00800000)
    scale = scale_bits.to(tl.float32, bitcast=True)
    tl.store(scales + row, tl.where(good, scale, float("nan")))
    for low in range(0, width, BLOCK):
        h = low + tl.arange(0, BLOCK)
        x = tl.load(rows + row * width + h, mask=h < tl.where(good, width, 0), other=0.0).to(tl.float32)
        if FP8:
            inverse = ((254 << 23) - scale_bits).to(tl.float32, bitcast=True)
            y = x * inverse
            signed = y.to(tl.int32, bitcast=True)
            size = signed & 0x7FFFFFFF
            # Subnormal below 2 ** -6: multiples of 2 ** -9. Else three bits of mantissa, ties to even, bias 7.
            small = nearest(tl.abs(y) * 512.0).to(tl.int32)
            usual = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
            code = tl.where(size < 0x3C800000, small, usual) | ((signed >> 24) & 0x80)
            tl.store(codes + row * width + h, code.to(tl.uint8), mask=h < width)
        else:
            code = nearest(tl.div_rn(x, tl.zeros((BLOCK,), tl.float32) + scale))
            code = tl.minimum(tl.maximum(code, -127.0), 127.0)
            tl.store(codes + row * width + h, code.to(tl.int8), mask=h < width)


@triton.jit
def dequantize_kernel(codes, scales, out, width, FP8: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    scale = tl.load(scales + row).to(tl.float32)
    code = tl.load(codes + row * width + h, mask=h < width, other=0).to(tl.int32)
    if FP8:
        size = code & 0x7F
        usual = ((size + (120 << 3)) << 20).to(tl.float32, bitcast=True)
        value = tl.where(size < 8, size.to(tl.float32) * 0.001953125, usual)
        value = tl.where(size == 0x7F, float("nan"), value)
        value = tl.where(code >= 0x80, -value, value)
    else:
        value = code.to(tl.float32)
    tl.store(out + row * width + h, value * scale, mask=h < width)
