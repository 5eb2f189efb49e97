"""What a walk of the sequential head leaves.

Legend: B requests, M proposals, V vocabulary, r rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

Mix = Callable[[int, Tensor], Tensor]
"""``(step, W1[previous] [B, r]) -> [B, r]``: what the successors' codebook multiplies; gated and recurrent heads."""


class Walk(NamedTuple):
    tokens_BM: Tensor
    """From a request's first logits with NaN on: -1."""
    embeddings_BMr: Tensor
    """``W1[previous]`` of every step, which the confidence head reads beside the hidden row."""
    logits_BMV: Tensor
    """Corrected, fp32, before the temperature: a sampled proposal's q is their softmax at its temperature."""
