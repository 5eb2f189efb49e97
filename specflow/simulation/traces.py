"""Rounds that a drafter really had, verified in full, as they are replayed under another load.

Legend: N rounds of all requests, M proposals, Q requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specflow.scheduling.survival import survival_of

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """Rounds ``first_Q[q] .. first_Q[q] + rounds_Q[q]`` are request q's, in order."""

    num_proposals: int
    accepted_N: Counts
    survival_NM: Floats | None
    """None: the drafter has no confidence, so nothing can be scheduled by it."""
    first_Q: Counts
    rounds_Q: Counts
    tokens_Q: Counts
    """Delivered after the first token."""

    def mean_survival_M(self) -> Floats:
        """Share of the rounds in which each position was reached and accepted."""
        reached_NM = self.accepted_N[:, None] > np.arange(self.num_proposals)
        mean_M: Floats = reached_NM.mean(axis=0)
        return mean_M

    def mean_tokens(self, length: int) -> float:
        """Delivered tokens per round with ``length`` proposals verified; a request's last round may deliver fewer."""
        committed_N = np.minimum(self.accepted_N, length) + 1
        rounds = 0
        for first, count, tokens in zip(self.first_Q, self.rounds_Q, self.tokens_Q, strict=True):
            reached = np.cumsum(committed_N[first : first + count])
            # Whole turns through the request's rounds, then the part of the last one.
            turns, left = divmod(int(tokens) - 1, int(reached[-1]))
            rounds += turns * int(count) + int(np.searchsorted(reached, left + 1)) + 1
        return float(self.tokens_Q.sum() / rounds)


def traces_of(
    requests: Iterable[Sequence[Mapping[str, Any]]], *, temperatures: Sequence[float] | None = None
) -> Traces:
    """From rounds with ``proposed``, ``accepted`` and, where known, ``delivered`` and ``confidence`` (raw logits).

    Requests without a round are left out. Raises ``ValueError`` if none is left, or proposals differ in number.
    """
    kept = [rounds for rounds in requests if rounds]
    sizes = {int(r["proposed"]) for rounds in kept for r in rounds}
    if len(sizes) != 1:
        raise ValueError(f"rounds with {sorted(sizes) or 'no'} proposals: expected rounds of one drafter")
    rounds = [r for request in kept for r in request]
    logits = [r.get("confidence") for r in rounds]
    counts = np.array([len(request) for request in kept], dtype=np.int64)
    known = all(z is not None for z in logits)
    return Traces(
        num_proposals=sizes.pop(),
        accepted_N=np.array([int(r["accepted"]) for r in rounds], dtype=np.int64),
        survival_NM=survival_of(np.array(logits, dtype=np.float32), temperatures) if known else None,
        first_Q=np.cumsum(counts) - counts,
        rounds_Q=counts,
        tokens_Q=np.array(
            [sum(int(r.get("delivered", int(r["accepted"]) + 1)) for r in request) for request in kept], dtype=np.int64
        ),
    )


def read_benchmark_rounds(path: Path) -> list[list[dict[str, Any]]]:
    """Of a benchmark's ``rounds.jsonl``: the rounds of each request and repeat."""
    return [json.loads(line)["rounds"] for line in path.read_text(encoding="utf-8").splitlines()]


def read_record_rounds(path: Path) -> list[list[dict[str, Any]]]:
    """Of a calibration's ``records.jsonl``."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found.setdefault(row["request"], []).append({**row, "confidence": row["logits"]})
    return list(found.values())
