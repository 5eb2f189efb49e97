"""Noise on the target's hidden states in training: the drafter learns to go on from states that are not quite right."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow.drafters.anchors import raw_stream

USUAL_LENGTH = 512
"""Tokens of a document whose noise has the stated width."""


def uniform_noise(rows: int, size: int, *, width: float, length: int, key: tuple[int, int, int]) -> Tensor:
    """``[rows, size]`` fp32, uniform within half of ``width * 512 / length`` around 0.

    A pure function of ``key``, the document's (seed, epoch, document); ``length``: the document's tokens.
    """
    drawn = raw_stream("noise", *key, count=rows * size) >> 40
    unit = torch.from_numpy(drawn.astype("float32")).mul_(2.0**-24).view(rows, size)
    return unit.sub_(0.5).mul_(width * USUAL_LENGTH / length)
