"""How well probabilities fit what happened: ECE, Brier score, AUC, and the data of a reliability diagram."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

BINS = 15
MARGIN = 1e-8


def bin_of(probability_N: Floats, *, bins: int = BINS) -> NDArray[np.int64]:
    """Bins of equal width over [0, 1]; 1 is in the last."""
    clamped = np.clip(probability_N, MARGIN, 1 - MARGIN)
    return np.minimum((clamped * bins).astype(np.int64), bins - 1)


def expected_calibration_error(probability_N: Floats, happened_N: Bools, *, bins: int = BINS) -> float:
    """Mean over rounds of ``|mean probability - share that happened|`` of the round's bin."""
    if not probability_N.size:
        return float("nan")
    difference = np.clip(probability_N, MARGIN, 1 - MARGIN) - happened_N
    sums = np.bincount(bin_of(probability_N, bins=bins), weights=difference, minlength=bins)
    return float(np.abs(sums).sum() / probability_N.size)


def brier_score(probability_N: Floats, happened_N: Bools) -> float:
    return float(np.mean((probability_N - happened_N) ** 2)) if probability_N.size else float("nan")


def area_under_curve(score_N: Floats, happened_N: Bools) -> float | None:
    """Chance that a round in which it happened has the higher score, ties half; none where all or none happened."""
    from scipy.stats import rankdata

    positives = int(happened_N.sum())
    negatives = happened_N.size - positives
    if not positives or not negatives:
        return None
    ranks = rankdata(score_N)[happened_N].sum()
    return float((ranks - positives * (positives + 1) / 2) / (positives * negatives))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    rounds: int
    predicted: float | None
    """Mean probability; none in an empty bin."""
    happened: float | None


def reliability(probability_N: Floats, happened_N: Bools, *, bins: int = BINS) -> list[Bin]:
    """One entry per bin, empty ones included."""
    index = bin_of(probability_N, bins=bins)
    counts = np.bincount(index, minlength=bins)
    predicted = np.bincount(index, weights=probability_N, minlength=bins)
    happened = np.bincount(index, weights=happened_N.astype(np.float64), minlength=bins)
    return [
        Bin(rounds=int(n), predicted=float(p / n) if n else None, happened=float(h / n) if n else None)
        for n, p, h in zip(counts, predicted, happened, strict=True)
    ]
