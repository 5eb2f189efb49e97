"""The exact output distribution of decoding: every path of its random decisions, with its probability.

Decoding is run again for every path with random numbers replaced by a script of decisions, so what is enumerated is
the engine's own code, not a model of it; nothing is estimated and no seed is involved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest
from torch import Tensor

Output = tuple[int, ...]


class Coin:
    """A uniform number of which nothing is known but what the comparisons so far have told."""

    def __init__(self, decide: Callable[[dict[int, float]], int]) -> None:
        self._decide, self._low, self._high = decide, 0.0, 1.0

    def __lt__(self, other: float) -> bool:
        if other <= self._low:
            return False
        if other >= self._high - 1e-12:  # probabilities that should add up to 1
            return True
        below = (other - self._low) / (self._high - self._low)
        answer = bool(self._decide({1: below, 0: 1.0 - below}))
        self._low, self._high = (self._low, other) if answer else (other, self._high)
        return answer


class Script:
    """In place of ``RequestRandom``: takes the decisions it is told, then the first possible ones, and notes all."""

    def __init__(self, told: Sequence[int]) -> None:
        self.told = list(told)
        self.taken: list[int] = []
        self.probability = 1.0
        self.others: list[list[int]] = []

    def __call__(self, seed: int) -> Script:
        return self

    def _decide(self, options: dict[int, float]) -> int:
        at = len(self.taken)
        if at < len(self.told):
            option = self.told[at]
        else:
            option, *rest = options
            self.others += [[*self.taken, other] for other in rest]
        self.taken.append(option)
        self.probability *= options[option]
        return option

    def accepts(self, *, p: float, q: float, place: tuple[int, ...]) -> bool:
        accept = min(1.0, p / q)
        options = {option: share for option, share in ((1, accept), (0, 1.0 - accept)) if share > 0.0}
        return bool(self._decide(options))

    def coin(self, *, place: tuple[int, ...]) -> Coin:
        return Coin(self._decide)

    def choose(self, weights_V: Tensor, *, purpose: object, place: tuple[int, ...]) -> int:
        weights: list[float] = weights_V.tolist()
        total = sum(weights)
        return self._decide({token: w / total for token, w in enumerate(weights) if w > 0.0})


def output_distribution(decode: Callable[[], Output], monkeypatch: pytest.MonkeyPatch) -> dict[Output, float]:
    """Probability of every output of ``decode``, which decodes one request."""
    found: defaultdict[Output, float] = defaultdict(float)
    paths: list[list[int]] = [[]]
    while paths:
        script = Script(paths.pop())
        monkeypatch.setattr("specflow.decoding.chooser.RequestRandom", script)
        found[decode()] += script.probability
        paths += script.others
    return dict(found)


def total_variation(a: dict[Output, float], b: dict[Output, float]) -> float:
    return sum(abs(a.get(k, 0.0) - b.get(k, 0.0)) for k in a.keys() | b.keys()) / 2
