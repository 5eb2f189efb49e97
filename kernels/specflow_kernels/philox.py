"""Triton's ``tl.rand`` in torch operations, so that a reference draws the numbers that its kernel draws.

Philox 4x32 with ten rounds, keyed by the seed, counting the offset; only its first word is used.
"""

from __future__ import annotations

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
KEY_A, KEY_B = 0x9E3779B9, 0xBB67AE85
ROUND_A, ROUND_B = 0xD2511F53, 0xCD9E8D57
ROUNDS = 10
SCALE = 4.6566127342e-10


def uniform(seed: Tensor, offset: Tensor) -> Tensor:
    """Fp32 numbers in [0, 1) of int64 seeds and int64 offsets, both at least 0, broadcast against each other."""
    whole = torch.zeros_like(seed + offset)
    seed, offset = seed + whole, offset + whole
    c0, c1 = offset & WORD, offset >> 32 & WORD
    c2 = c3 = torch.zeros_like(c0)
    k0, k1 = seed & WORD, seed >> 32 & WORD
    for _ in range(ROUNDS):
        high_a, low_a = _product(ROUND_A, c0)
        high_b, low_b = _product(ROUND_B, c2)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0, k1 = (k0 + KEY_A) & WORD, (k1 + KEY_B) & WORD
    signed = torch.where(c0 >= 1 << 31, WORD - c0, c0)  # the complement of a negative 32-bit number
    return signed.to(torch.float32) * SCALE


def _product(factor: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of the product of two 32-bit numbers; int64 does not hold the whole."""
    low, high = (factor & 0xFFFF) * word, (factor >> 16) * word
    return (high + (low >> 16)) >> 16, (low + ((high & 0xFFFF) << 16)) & WORD
