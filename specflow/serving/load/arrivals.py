"""When requests are sent: as soon as there is room, at random with a rate, or as a trace says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


def poisson(rate: float, count: int, *, seed: int) -> list[float]:
    """Seconds after the start at which ``count`` requests are due: exponential gaps with mean ``1 / rate``."""
    gaps = np.random.default_rng(seed).exponential(1.0 / rate, size=count)
    return [float(at) for at in np.cumsum(gaps)]


def read_trace(path: Path) -> list[float]:
    """Seconds of each line ``{"seconds": s}``; raises ``ValueError`` with every line that is wrong."""
    found: list[float] = []
    wrong: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            at = float(json.loads(line)["seconds"])
            if not (at >= (found[-1] if found else 0.0) and at != float("inf")):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            wrong.append(f'{path}:{number}: expected {{"seconds": s}}, s not before the line above, found {line[:60]}')
            continue
        found.append(at)
    if not found and not wrong:
        wrong.append(f"{path}: expected at least one line, found none")
    if wrong:
        raise ValueError("\n".join(wrong))
    return found
