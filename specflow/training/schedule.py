"""Learning rate over steps: linear warm-up, then half a cosine down to zero."""

from __future__ import annotations

import math


def learning_rate(step: int, *, steps: int, warmup: float, peak: float) -> float:
    """Rate of 0-based ``step`` of ``steps``; ``warmup`` is a share of the steps. Never 0 at the first step."""
    rising = math.ceil(warmup * steps)
    if step < rising:
        return peak * (step + 1) / rising
    done = (step - rising) / max(1, steps - rising)
    return peak * 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))
