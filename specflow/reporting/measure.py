"""Figures of a benchmark, formed from sums over decoded requests.

Every figure is a ratio of two sums, formed once at the end, so that long requests weigh what they cost
and a repeated or split run adds up exactly.

Tau and acceptance are those of ``specflow.decoding.metrics``. Tokens per second are tokens after the first over the
time from the first to the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specflow.decoding import metrics
from specflow.decoding.records import Generation, Round

BOOTSTRAP_SAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One prompt decoded both ways in one run; one entry per repeat."""

    id: str
    kind: str
    plain: Sequence[Generation]
    speculative: Sequence[Generation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Sums of one decoding mode. Seconds; ``decode_tokens`` are the tokens after the first of each request."""

    tokens: int
    decode_tokens: int
    decode_seconds: float
    prefill_seconds: float

    @property
    def per_second(self) -> float | None:
        return self.decode_tokens / self.decode_seconds if self.decode_seconds > 0 else None

    @property
    def per_second_with_prefill(self) -> float | None:
        seconds = self.decode_seconds + self.prefill_seconds
        return self.tokens / seconds if seconds > 0 else None

    def as_json(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "decode_tokens": self.decode_tokens,
            "decode_seconds": self.decode_seconds,
            "prefill_seconds": self.prefill_seconds,
            "tokens_per_second": self.per_second,
            "tokens_per_second_with_prefill": self.per_second_with_prefill,
        }


def rate(generations: Iterable[Generation]) -> Rate:
    found = list(generations)
    return Rate(
        tokens=sum(len(g.tokens) for g in found),
        decode_tokens=sum(max(len(g.tokens) - 1, 0) for g in found),
        decode_seconds=sum(g.decode_seconds for g in found),
        prefill_seconds=sum(g.prefill_seconds for g in found),
    )


def tau(generations: Iterable[Generation]) -> float | None:
    """Mean delivered tokens per round, bonus or correction included; none without rounds."""
    return metrics.acceptance(generations).tau.value


def acceptance(generations: Iterable[Generation]) -> dict[str, list[float | None]]:
    """Acceptance at positions 1..m as shares, before any cut by an end token or the length limit."""
    found = metrics.acceptance(generations)
    return {
        "cumulative": [ratio.value for ratio in found.cumulative],
        "conditional": [ratio.value for ratio in found.conditional],
        "accepted": [ratio.total for ratio in found.cumulative],
        "judged": [ratio.count for ratio in found.cumulative],
    }


def round_seconds(rounds: Sequence[Round]) -> dict[str, float] | None:
    """Mean seconds of one round, split; none without rounds."""
    if not rounds:
        return None
    sums = {
        "draft": sum(r.draft_seconds for r in rounds),
        "verify": sum(r.verify_seconds for r in rounds),
        "state": sum(r.state_seconds for r in rounds),
        "other": sum(r.other_seconds for r in rounds),
    }
    mean = {name: value / len(rounds) for name, value in sums.items()}
    return {**mean, "total": sum(mean.values())}


def speedup(pairs: Sequence[Pair], *, seed: int = 0, samples: int = BOOTSTRAP_SAMPLES) -> dict[str, Any] | None:
    """Speculative over plain tokens per second, with a 95 % bootstrap interval that resamples prompts.

    None where either side has no decode time: without a baseline there is no speed-up.
    """
    sums = np.array([_sums(pair) for pair in pairs], dtype=np.float64).reshape(-1, 8)
    whole = _ratio(sums.sum(0))
    if not np.isfinite(whole) or whole <= 0:
        return None
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(pairs), size=(samples, len(pairs)))
    resampled = _ratio(sums[drawn].sum(1))
    low, high = np.nanpercentile(resampled, [2.5, 97.5])
    each = _ratio(sums)
    return {
        "ratio": float(whole),
        "low": float(low),
        "high": float(high),
        "median_of_prompts": float(np.nanmedian(each)),
        "prompts_slower": int(np.sum(each < 1.0)),
        "with_prefill": float(_ratio(sums.sum(0), first=2)),
    }


def summarise(pairs: Sequence[Pair], *, pooled_round: Mapping[str, float] | None = None) -> dict[str, Any]:
    """All figures of one group of prompts as JSON values.

    ``pooled_round``: mean round time of the whole run; the predicted time per token is that time over this
    group's tau, which makes it a prediction for a kind rather than a restatement of its own measurement.
    """
    speculative = [g for pair in pairs for g in pair.speculative]
    rounds = [r for g in speculative for r in g.rounds]
    fast, slow = rate(speculative), rate(g for pair in pairs for g in pair.plain)
    own_round, mean_tokens = round_seconds(rounds), tau(speculative)
    used = pooled_round or own_round
    return {
        "prompts": len(pairs),
        "plain": slow.as_json(),
        "speculative": fast.as_json(),
        "speedup": speedup(pairs),
        "tau": mean_tokens,
        "rounds": len(rounds),
        "acceptance": acceptance(speculative),
        "round_seconds": own_round,
        "seconds_per_token": {
            "predicted": used["total"] / mean_tokens if used and mean_tokens else None,
            "measured": 1.0 / fast.per_second if fast.per_second else None,
            "plain": 1.0 / slow.per_second if slow.per_second else None,
        },
    }


def by_kind(pairs: Sequence[Pair]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Figures of the whole run and of each kind of prompt, kinds in alphabetical order."""
    total = summarise(pairs)
    kinds = sorted({pair.kind for pair in pairs})
    pooled = total["round_seconds"]
    return total, {k: summarise([p for p in pairs if p.kind == k], pooled_round=pooled) for k in kinds}


def _sums(pair: Pair) -> tuple[float, ...]:
    """Columns: decode tokens, decode seconds, all tokens, all seconds; first speculative, then plain."""
    columns: list[float] = []
    for side in (rate(pair.speculative), rate(pair.plain)):
        columns += [side.decode_tokens, side.decode_seconds, side.tokens, side.decode_seconds + side.prefill_seconds]
    return tuple(columns)


def _ratio(sums: Any, *, first: int = 0) -> Any:
    """``(tokens / seconds) / (plain tokens / plain seconds)`` over the last axis; nan where undefined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return (sums[..., first] / sums[..., first + 1]) / (sums[..., first + 4] / sums[..., first + 5])
