"""What a drafter was measured to accept, as the benchmark says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specflow.serving.draft import read_json

RESULT = "result.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRecord:
    """``spread``: standard deviation of the tokens of a round."""

    tau: float
    rounds: int
    spread: float
    num_proposals: int | None
    source: str
    """Where it was measured, on what."""


def acceptance_record(path: Path, *, kind: str | None = None) -> AcceptanceRecord:
    """Of a benchmark: its directory, or the file. ``kind``: of prompts; none: all of them.

    Raises ``ValueError`` naming what is missing.
    """
    file = path / RESULT if path.is_dir() else path
    result = read_json(file)
    group = result.get("total") if kind is None else (result.get("kinds") or {}).get(kind)
    if not isinstance(group, Mapping):
        known = ", ".join(sorted(result.get("kinds") or {})) or "none"
        raise ValueError(f"{file}: expected the figures of {kind or 'all prompts'}, found kinds of prompts: {known}")
    try:
        tau, rounds = float(group["tau"]), int(group["rounds"])
        spread = accepted_spread(group["acceptance"]["accepted"], rounds)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{file}: expected tau, rounds and accepted counts of a benchmark, found {error!r}") from error
    drafter: Mapping[str, Any] = result.get("drafter") or {}
    engine: Mapping[str, Any] = result.get("engine") or {}
    return AcceptanceRecord(
        tau=tau,
        rounds=rounds,
        spread=spread,
        num_proposals=drafter.get("num_proposals"),
        source=f"{drafter.get('name', 'a drafter')}, {engine.get('name', 'an')} engine, {file}",
    )


def accepted_spread(accepted: Sequence[float], rounds: int) -> float:
    """Standard deviation of the accepted tokens of a round; ``accepted[j]``: rounds that accepted more than j."""
    mean = sum(accepted) / rounds
    square = sum((2 * j + 1) * count for j, count in enumerate(accepted)) / rounds
    return math.sqrt(max(square - mean * mean, 0.0))
