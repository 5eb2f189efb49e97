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
class Curves:
    loss: Series = field(default_factory=Series)
    learning_rate: Series = field(default_factory=Series)
    tau: Series = field(default_factory=Series)
    """Held-out free walk during training."""
    tau_by_kind: Mapping[str, Series] = field(default_factory=dict)


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
    kinds = sorted({kind for row in evaluations for kind in _tau_by_kind(row)})
    return Curves(
        loss=_series(rows, "loss"),
        learning_rate=_series(rows, "lr"),
        tau=_series(evaluations, "tau"),
        tau_by_kind={
            kind: _series([{"step": row["step"], "tau": _tau_by_kind(row).get(kind)} for row in evaluations], "tau")
            for kind in kinds
        },
    )


def smooth(values: Sequence[float], *, width: int = 9) -> list[float]:
    """Centred moving mean, with the window cut at both ends."""
    half = width // 2
    windows = [values[max(i - half, 0) : i + half + 1] for i in range(len(values))]
    return [sum(w) / len(w) for w in windows]


def _series(rows: Sequence[Mapping[str, Any]], key: str) -> Series:
    found = [(int(row["step"]), float(row[key])) for row in rows if isinstance(row.get(key), (int, float))]
    return Series(steps=[s for s, _ in found], values=[v for _, v in found])


def _tau_by_kind(row: Mapping[str, Any]) -> dict[str, float]:
    """``{kind: tau}`` from ``by_kind``, whose values are numbers or objects with ``tau``."""
    found = row.get("by_kind") or row.get("kinds") or {}
    values = {k: (v.get("tau") if isinstance(v, Mapping) else v) for k, v in found.items()}
    return {k: float(v) for k, v in values.items() if isinstance(v, (int, float))}
