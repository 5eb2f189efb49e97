"""Rounds with raw confidence logits and what the target accepted, and what makes them unfit for a calibration.

Legend: N rounds, M proposals of a round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FEWEST_LOGITS = 16
"""So many values that all lie in [0, 1] are probabilities; fewer may be chance."""


class RecordsError(ValueError):
    """Records that must not be calibrated on; ``problems`` says every reason."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceRecords:
    """Rounds that were verified in full length, with no scheduler active."""

    logits_NM: NDArray[np.float32]
    """Raw confidence logits, before any temperature."""
    accepted_N: NDArray[np.int64]
    """Proposals accepted, 0 to M, before any cut by an end token or the length limit."""
    request_N: NDArray[np.int64]
    """Which request a round belongs to: rounds of one request are not independent."""

    @property
    def rounds(self) -> int:
        return int(self.logits_NM.shape[0])

    @property
    def num_proposals(self) -> int:
        return int(self.logits_NM.shape[1])

    def accepted_NM(self) -> NDArray[np.bool_]:
        """Whether position i and all before it were accepted."""
        return np.arange(self.num_proposals) < self.accepted_N[:, None]

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> ConfidenceRecords:
        return ConfidenceRecords(
            logits_NM=self.logits_NM[rows], accepted_N=self.accepted_N[rows], request_N=self.request_N[rows]
        )


def joined(parts: Sequence[ConfidenceRecords]) -> ConfidenceRecords:
    """One after the other; requests of different parts stay apart."""
    offsets = np.cumsum([0, *(int(p.request_N.max(initial=-1)) + 1 for p in parts[:-1])])
    return ConfidenceRecords(
        logits_NM=np.concatenate([p.logits_NM for p in parts]),
        accepted_N=np.concatenate([p.accepted_N for p in parts]),
        request_N=np.concatenate([p.request_N + o for p, o in zip(parts, offsets, strict=True)]),
    )


def value_problems(logits_NM: NDArray[np.float32], *, where: str, foreign: bool = True) -> list[str]:
    """What is wrong with the logits themselves.

    ``foreign``: they come from a file, so that they may be something else than logits. The embedded engine's are raw
    logits by construction, and those of a drafter that has learned little may all be between 0 and 1.
    """
    found = []
    finite = np.isfinite(logits_NM)
    if not finite.all():
        rows = int((~finite).any(axis=1).sum())
        found.append(f"{where}: {rows} of {len(logits_NM)} rounds have logits that are not finite")
    if foreign and logits_NM.size >= FEWEST_LOGITS and ((logits_NM >= 0) & (logits_NM <= 1))[finite].all():
        found.append(
            f"{where}: all {logits_NM.size} values lie between 0 and 1: these are probabilities; "
            "expected raw logits, before the sigmoid and without a temperature"
        )
    return found


def numbered(keys: Iterable[object]) -> NDArray[np.int64]:
    """0, 1, 2, ... by first appearance."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
