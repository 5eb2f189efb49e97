"""How requests arrive: as many as may run are always there (closed loop), or at random moments (Poisson)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """At most ``concurrency`` requests run. ``rate`` none: a closed loop; else arrivals per second, which may wait."""

    concurrency: int
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.concurrency < 1 or (self.rate is not None and not self.rate > 0):
            raise ValueError(f"concurrency {self.concurrency}, rate {self.rate}: expected at least 1, and above 0")


class Arrivals:
    """Moments at which requests arrive, one after the other; a function of the seed."""

    def __init__(self, load: Load, seed: int) -> None:
        self._rate, self._random, self._next = load.rate, np.random.default_rng((seed, 1)), 0.0
        self.take()

    @property
    def next(self) -> float:
        return self._next

    def take(self) -> float:
        """The moment of the next one, which is then past."""
        taken = self._next
        if self._rate is not None:
            self._next += float(self._random.exponential(1.0 / self._rate))
        return taken
