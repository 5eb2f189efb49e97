"""Figures of waves: tokens per second by mode and concurrency, against plain decoding of the same run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from specflow.config.columns import plain_table
from specflow.reporting import text
from specflow.reporting.measure import BOOTSTRAP_SAMPLES, tau

if TYPE_CHECKING:
    from specflow.serving.waves import Wave

PLAIN = "plain"
RANKING_HEAD = ["mode", "in flight", "tok/s", "tau", "against plain", "95 % interval", "same output"]
CONVENTION = "tokens of all requests over the time of their waves by the clock, prefill included"


def ranking(waves: Sequence[Wave]) -> list[dict[str, Any]]:
    """One row per concurrency and mode: by concurrency, then the quickest first.

    ``speedup`` is the ratio to plain decoding at the same concurrency; its 95 % interval resamples waves.
    """
    rows: list[dict[str, Any]] = []
    for concurrency in sorted({w.concurrency for w in waves}):
        here = [w for w in waves if w.concurrency == concurrency]
        found = [_row(here, mode) for mode in dict.fromkeys(w.mode for w in here)]
        rows += sorted(found, key=lambda row: -row["tokens_per_second"])
    return rows


def sums(waves: Sequence[Wave]) -> list[dict[str, Any]]:
    """Tokens and seconds of each wave and mode, for whoever compares two modes later."""
    names = ("mode", "concurrency", "number", "repeat", "tokens", "seconds")
    return [{name: getattr(wave, name) for name in names} for wave in waves]


def ranking_table(rows: Sequence[dict[str, Any]]) -> str:
    """Plain text; a mode's line, the quickest first within a concurrency."""
    return plain_table([RANKING_HEAD, *(cells(row) for row in rows)], left=1)


def cells(row: dict[str, Any]) -> list[str]:
    """A row of :func:`ranking` as text."""
    plain = row["mode"] == PLAIN
    return [
        row["mode"],
        str(row["concurrency"]),
        text.number(row["tokens_per_second"], 1),
        text.number(row["tau"]),
        text.NONE if plain else text.times(row["speedup"]["ratio"]),
        text.NONE if plain else text.interval(row["speedup"]["low"], row["speedup"]["high"]),
        text.NONE if plain else f"{row['equal_prompts']} of {row['prompts']}",
    ]


def _row(waves: Sequence[Wave], mode: str) -> dict[str, Any]:
    own, plain = _sums(waves, mode), _sums(waves, PLAIN)
    total = own.sum(0)
    generations = [g for w in waves if w.mode == mode for g in w.generations]
    base = {(w.number, w.repeat): w for w in waves if w.mode == PLAIN}
    equal = [
        a.tokens == b.tokens
        for w in waves
        if w.mode == mode
        for a, b in zip(w.generations, base[w.number, w.repeat].generations, strict=True)
    ]
    return {
        "mode": mode,
        "concurrency": waves[0].concurrency,
        "prompts": len(generations),
        "tokens": int(total[0]),
        "seconds": float(total[1]),
        "tokens_per_second": float(total[0] / total[1]),
        "tau": tau(generations),
        "equal_prompts": sum(equal),
        "speedup": _speedup(own, plain),
    }


def _sums(waves: Sequence[Wave], mode: str) -> np.ndarray[Any, Any]:
    """``[waves, 2]``: tokens and seconds of a mode, in the order of the waves."""
    found = sorted((w for w in waves if w.mode == mode), key=lambda w: (w.number, w.repeat))
    return np.array([[w.tokens, w.seconds] for w in found], dtype=np.float64)


def _speedup(own: np.ndarray[Any, Any], plain: np.ndarray[Any, Any]) -> dict[str, float | None]:
    def ratio(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> Any:
        return (a[..., 0] / a[..., 1]) / (b[..., 0] / b[..., 1])

    whole = float(ratio(own.sum(0), plain.sum(0)))
    if len(own) < 2:
        return {"ratio": whole, "low": None, "high": None}
    drawn = np.random.default_rng(0).integers(0, len(own), size=(BOOTSTRAP_SAMPLES, len(own)))
    low, high = np.percentile(ratio(own[drawn].sum(1), plain[drawn].sum(1)), [2.5, 97.5])
    return {"ratio": whole, "low": float(low), "high": float(high)}
