"""A draw from weights by inverting their running sum, in torch operations."""

from __future__ import annotations

from torch import Tensor


def draw(weights_V: Tensor, coin: float) -> int:
    """The first id whose running sum exceeds ``coin`` times the total; only ids with weight. -1 if a weight is NaN.

    Where rounding leaves none, the last id with weight; -1 if there is none at all.
    """
    total = weights_V.sum()
    if bool(total.isnan()):
        return -1
    positive = weights_V > 0
    reached = (weights_V.cumsum(0) > coin * total) & positive
    candidates = reached if bool(reached.any()) else positive
    ids = candidates.nonzero().squeeze(1)
    if ids.numel() == 0:
        return -1
    return int(ids[0] if bool(reached.any()) else ids[-1])


def lowest_argmax(scores_V: Tensor) -> int:
    """The lowest of the largest; -1 with NaN."""
    if bool(scores_V.isnan().any()):
        return -1
    return int((scores_V == scores_V.max()).nonzero()[0])
