"""How much quicker one mode is than another, from the waves that both decoded in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specflow.reporting.measure import BOOTSTRAP_SAMPLES

Waves = Sequence[Mapping[str, Any]]
"""Rows of :func:`specflow.reporting.ranking.sums`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Ratio of tokens per second. ``low`` and ``high`` are none where fewer than two waves were measured."""

    ratio: float
    low: float | None
    high: float | None
    waves: int


def gain(waves: Waves, mode: str, against: str, *, concurrency: int, confidence: float = 0.95) -> Gain:
    """Of ``mode`` over ``against``; the interval of level ``confidence`` resamples waves, with all their repeats.

    A wave's repeats decode the same prompts, so they are no further evidence of what other prompts would give. Raises
    ``ValueError`` where the modes did not decode the same waves.
    """
    own, other = (_sums(waves, name, concurrency) for name in (mode, against))
    if set(own) != set(other) or not own:
        raise ValueError(
            f"expected {mode!r} and {against!r} to have decoded the same waves with {concurrency} in flight, found "
            f"{len(own)} and {len(other)}"
        )
    a, b = (np.array([found[number] for number in sorted(own)]) for found in (own, other))
    whole = float(_ratio(a.sum(0), b.sum(0)))
    if len(a) < 2:
        return Gain(ratio=whole, low=None, high=None, waves=len(a))
    drawn = np.random.default_rng(0).integers(0, len(a), size=(BOOTSTRAP_SAMPLES, len(a)))
    ratios = _ratio(a[drawn].sum(1), b[drawn].sum(1))
    low, high = np.percentile(ratios, [50 * (1 - confidence), 50 * (1 + confidence)])
    return Gain(ratio=whole, low=float(low), high=float(high), waves=len(a))


def _sums(waves: Waves, mode: str, concurrency: int) -> dict[int, tuple[float, float]]:
    """Tokens and seconds of each wave, its repeats together."""
    found: dict[int, tuple[float, float]] = {}
    for wave in waves:
        if wave["mode"] == mode and wave["concurrency"] == concurrency:
            tokens, seconds = found.get(wave["number"], (0.0, 0.0))
            found[wave["number"]] = (tokens + wave["tokens"], seconds + wave["seconds"])
    return found


def _ratio(a: Any, b: Any) -> Any:
    """``[..., 2]`` tokens and seconds."""
    return (a[..., 0] / a[..., 1]) / (b[..., 0] / b[..., 1])
