"""Training curves of a drafter, read from its ``metrics.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values over optimiser steps."""

    steps: Sequence[int] = ()
    values: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """95 % intervals over optimiser steps, those that are known."""

    steps: Sequence[int] = ()
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    loss: Series = field(default_factory=Series)
    learning_rate: Series = field(default_factory=Series)
    gradient_norm: Series = field(default_factory=Series)
    tau: Series = field(default_factory=Series)
    """Held-out free walk during training."""
    tau_by_kind: Mapping[str, Series] = field(default_factory=dict)
    tau_band: Band = field(default_factory=Band)
    tau_band_by_kind: Mapping[str, Band] = field(default_factory=dict)
    best: Mapping[str, Any] = field(default_factory=dict)
    """The evaluation with the largest tau, the first of equal ones."""


def read_curves(path: Path) -> Curves:
    """Lines with ``loss`` are training steps, lines with ``tau`` are held-out evaluations.

    Raises ``ValueError`` with the line number where a line is not a JSON object with ``step``.
    """
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            row["step"] = int(row["step"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}:{number}: expected a JSON object with 'step', found {line[:80]!r}") from error
        rows.append(row)
    evaluations = [row for row in rows if row.get("tau") is not None]
    kinds = sorted({kind for row in evaluations for kind in _kinds(row)})
    by_kind = {
        kind: [{**_kinds(row)[kind], "step": row["step"]} for row in evaluations if kind in _kinds(row)]
        for kind in kinds
    }
    return Curves(
        loss=_series(rows, "loss"),
        learning_rate=_series(rows, "lr"),
        gradient_norm=_series(rows, "grad_norm"),
        tau=_series(evaluations, "tau"),
        tau_by_kind={kind: _series(found, "tau") for kind, found in by_kind.items()},
        tau_band=_band(evaluations),
        tau_band_by_kind={kind: _band(found) for kind, found in by_kind.items()},
        best=max(evaluations, key=lambda row: (row["tau"], -row["step"]), default={}),
    )


def smooth(values: Sequence[float], *, width: int = 9) -> list[float]:
    """Centred moving mean, with the window cut at both ends."""
    half = width // 2
    windows = [values[max(i - half, 0) : i + half + 1] for i in range(len(values))]
    return [sum(w) / len(w) for w in windows]


def _series(rows: Sequence[Mapping[str, Any]], key: str) -> Series:
    found = [(int(row["step"]), float(row[key])) for row in rows if isinstance(row.get(key), (int, float))]
    return Series(steps=[s for s, _ in found], values=[v for _, v in found])


def _band(rows: Sequence[Mapping[str, Any]]) -> Band:
    """Intervals are absent where fewer than two documents were walked, and in files of older runs."""
    known = [row for row in rows if row.get("tau_low") is not None and row.get("tau_high") is not None]
    return Band(
        steps=[int(row["step"]) for row in known],
        low=[float(row["tau_low"]) for row in known],
        high=[float(row["tau_high"]) for row in known],
    )


def _kinds(row: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Figures by kind, whose values are numbers (tau) or objects with ``tau``."""
    found = row.get("by_kind") or row.get("kinds") or {}
    return {k: v if isinstance(v, Mapping) else {"tau": v} for k, v in found.items()}
