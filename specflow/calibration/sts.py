"""Sequential temperature scaling (METHODS 6.1): one temperature per position, from left to right.

``S_i(T) = S_{i-1} * sigmoid(z_i / T)`` estimates that positions up to i are accepted. ``T_i`` is the one of 41 that
makes the calibration error of ``S_i`` smallest on the rounds to fit on, given the temperatures before it. It is kept
only where there is enough to learn from and where it makes the error smaller on other requests too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from specflow.calibration.bootstrap import temperature_interval
from specflow.calibration.measures import BINS, Floats, expected_calibration_error
from specflow.calibration.records import ConfidenceRecords
from specflow.calibration.split import split_requests

GRID: Floats = np.logspace(-1.0, 1.0, 41)
GRID[20] = 1.0
TIE = 1e-12
"""Errors closer than this are equal: only the order of additions tells them apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRules:
    validation_share: float = 0.5
    min_events: int = 30
    """Fewest rounds accepted up to a position, and fewest rejected just there, for a temperature other than 1."""
    bootstraps: int = 200
    seed: int = 0
    bins: int = BINS


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionFit:
    """``temperature`` is used; ``best`` had the smallest error on the rounds to fit on."""

    temperature: float
    best: float
    reason: str
    """``fitted``, ``already 1``, ``too few events`` or ``no gain on validation``."""
    low: float
    """95 % interval of ``best``: the same choice on resampled requests, given the temperatures before it."""
    high: float
    accepted: int
    """Of the rounds to fit on: accepted up to here, and rejected here after all before were accepted."""
    rejected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StsFit:
    positions: tuple[PositionFit, ...]
    fit: ConfidenceRecords
    validation: ConfidenceRecords

    @property
    def temperatures(self) -> tuple[float, ...]:
        return tuple(position.temperature for position in self.positions)


def fit_sts(records: ConfidenceRecords, rules: FitRules | None = None) -> StsFit:
    """Raises ``RecordsError`` where the rounds cannot be split by request."""
    rules = rules or FitRules()
    fit, validation = split_requests(records, validation_share=rules.validation_share, seed=rules.seed)
    before_N, before_V = np.ones(fit.rounds), np.ones(validation.rounds)
    positions = []
    for i in range(records.num_proposals):
        found = _fit_position(i, fit, validation, before_N, before_V, rules)
        positions.append(found)
        before_N = before_N * expit(fit.logits_NM[:, i].astype(np.float64) / found.temperature)
        before_V = before_V * expit(validation.logits_NM[:, i].astype(np.float64) / found.temperature)
    return StsFit(positions=tuple(positions), fit=fit, validation=validation)


def survival_of(logits_NM: NDArray[np.float32], temperatures: Sequence[float] | None = None) -> Floats:
    """``[N, M]`` cumulative survival; no temperatures: all 1. Raises ``ValueError`` on another number of them."""
    scale = np.ones(logits_NM.shape[-1]) if temperatures is None else np.asarray(temperatures, dtype=np.float64)
    if scale.shape != logits_NM.shape[-1:]:
        raise ValueError(f"{scale.size} temperatures for {logits_NM.shape[-1]} proposals")
    survival: Floats = np.cumprod(expit(logits_NM.astype(np.float64) / scale), axis=-1)
    return survival


def best_of(errors: Floats) -> int:
    """Index of the smallest error; among equal ones the temperature nearest to 1, then the larger."""
    tied = np.flatnonzero(errors <= errors.min() + TIE)
    return int(min(tied, key=lambda i: (round(abs(math.log(GRID[i])), 9), -GRID[i])))


def _fit_position(
    i: int,
    fit: ConfidenceRecords,
    validation: ConfidenceRecords,
    before_N: Floats,
    before_V: Floats,
    rules: FitRules,
) -> PositionFit:
    z_N, y_N = fit.logits_NM[:, i].astype(np.float64), fit.accepted_N > i
    errors = np.array([expected_calibration_error(before_N * expit(z_N / t), y_N, bins=rules.bins) for t in GRID])
    best = float(GRID[best_of(errors)])
    accepted, rejected = int(y_N.sum()), int((fit.accepted_N == i).sum())
    low, high = temperature_interval(
        z_N, y_N, before_N, fit.request_N, grid=GRID, choose=best_of, draws=rules.bootstraps, seed=(rules.seed, i),
        bins=rules.bins,
    )  # fmt: skip

    def on_validation(temperature: float) -> float:
        z_V = validation.logits_NM[:, i].astype(np.float64)
        return expected_calibration_error(
            before_V * expit(z_V / temperature), validation.accepted_N > i, bins=rules.bins
        )

    reason = "fitted"
    if best == 1.0:
        reason = "already 1"
    elif min(accepted, rejected) < rules.min_events:
        reason = "too few events"
    elif not on_validation(best) < on_validation(1.0) - TIE:
        reason = "no gain on validation"
    return PositionFit(
        temperature=best if reason == "fitted" else 1.0,
        best=best,
        reason=reason,
        low=low,
        high=high,
        accepted=accepted,
        rejected=rejected,
    )
