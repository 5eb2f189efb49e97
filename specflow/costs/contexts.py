"""How much text the requests of a timed pass have behind them: unlike, as in real batches.

Requests of one length are the cheapest case: attention then needs no mask and the cache is written in one piece. A
table of such passes promises more than the engine keeps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def even_points(count: int) -> list[float]:
    """``count`` points between 0 and 1 of which every first few are spread evenly, from the middle on (van der Corput).

    A pass of R requests takes the first R, so passes of all sizes have the same mixture.
    """
    points = []
    for number in range(1, count + 1):
        point, step = 0.0, 0.5
        while number:
            point, step, number = point + step * (number % 2), step / 2, number // 2
        points.append(point)
    return points


def spread_contexts(context: int, count: int, *, spread: float) -> list[int]:
    """Lengths between ``context`` times ``1 - spread`` and ``1 + spread``, the first of them ``context``."""
    return [max(1, round(context * (1.0 + spread * (2.0 * point - 1.0)))) for point in even_points(count)]


def contexts_like(lengths: Sequence[int], count: int) -> list[int]:
    """Lengths distributed as ``lengths``, the first of them their median."""
    return [max(1, round(float(found))) for found in np.quantile(lengths, even_points(count))]
