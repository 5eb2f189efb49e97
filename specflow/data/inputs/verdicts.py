"""What becomes of each usable row, and for each row set aside the row that it repeats: ten bytes per row."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np


class Verdict(IntEnum):
    """The name in lower case is the reason in the quarantine."""

    KEPT = 0
    ALSO_HELDOUT = 1
    REPEATED_ID = 2
    DUPLICATE = 3
    NEAR_HELDOUT = 4
    NEAR_DUPLICATE = 5
    NOT_DRAWN = 6
    TURN_ALSO_HELDOUT = 7

    @property
    def reason(self) -> str:
        return self.name.lower()


class Verdicts:
    """By place in the table."""

    def __init__(self, count: int) -> None:
        self.codes: np.ndarray[Any, np.dtype[np.uint8]] = np.zeros(count, dtype=np.uint8)
        self.shared_id: np.ndarray[Any, np.dtype[np.bool_]] = np.zeros(count, dtype=np.bool_)
        """The row's id is that of a row of an earlier source, which keeps it."""
        self._twins: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(count, dtype=np.int64)

    def set_aside(self, place: int, verdict: Verdict, *, twin: int) -> None:
        self.codes[place] = verdict
        self._twins[place] = twin

    def twin(self, place: int) -> int:
        """The row that the one at ``place`` repeats."""
        return int(self._twins[place])

    def kept(self, place: int) -> bool:
        return bool(self.codes[place] == Verdict.KEPT)

    def reasons(self, start: int, count: int) -> dict[str, int]:
        """Reason and number of rows in a range of places, those kept and not drawn left out."""
        found, counts = np.unique(self.codes[start : start + count], return_counts=True)
        pairs = zip(map(Verdict, found.tolist()), counts.tolist(), strict=True)
        return {v.reason: n for v, n in pairs if v not in (Verdict.KEPT, Verdict.NOT_DRAWN)}
