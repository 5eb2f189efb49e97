"""Intervals of ratios of sums over documents.

Legend: D documents, K ratios, S resamples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

SAMPLES = 2000
LEAST = 2
"""Fewer documents say nothing about their spread."""


def ratio_intervals(
    numerators_DK: ArrayLike, denominators_DK: ArrayLike, *, seed: int = 0, samples: int = SAMPLES
) -> list[tuple[float, float] | None]:
    """95 % percentile bootstrap intervals of ``sum numerators / sum denominators``, documents drawn with replacement.

    None for a ratio to which fewer than two documents contribute. The same input gives the same intervals.
    """
    above = np.asarray(numerators_DK, dtype=np.float64)
    below = np.asarray(denominators_DK, dtype=np.float64)
    if len(above) < LEAST:
        return [None] * (above.shape[1] if above.ndim == 2 else 0)
    count = len(above)
    # How often each document is drawn, instead of which: the sums are then one product.
    drawn_SD = np.random.default_rng(seed).multinomial(count, np.full(count, 1.0 / count), size=samples)
    return [
        _interval(drawn_SD @ above[:, k], drawn_SD @ below[:, k]) if (below[:, k] > 0).sum() >= LEAST else None
        for k in range(above.shape[1])
    ]


def _interval(above_S: NDArray[np.float64], below_S: NDArray[np.float64]) -> tuple[float, float]:
    formed = below_S > 0
    low, high = np.percentile(above_S[formed] / below_S[formed], [2.5, 97.5])
    return float(low), float(high)
