"""Rows that cannot be used: set aside with a reason, counted, and limited in number."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

SELECTED = frozenset(
    {
        "duplicate",
        "near_duplicate",
        "near_heldout",
        "only_tool_calls",
        "turn_also_heldout",
        "too_few_characters",
        "too_many_characters",
    }
)
"""Reasons that the configuration asked for. Such rows are good ones; they do not count against ``max_skipped``."""

SHOWN = 5


class DataError(Exception):
    """Data that cannot be used at all; the message says where, what was found and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """One row that was set aside."""

    source: str
    """File, or name of the input, that the row comes from."""
    row: int
    """1-based line number in the source."""
    reason: str
    """Short code, the same for the same kind of defect."""
    detail: str = ""
    id: str | None = None

    def __str__(self) -> str:
        return f"{self.source}:{self.row}: {self.reason}{f' ({self.detail})' if self.detail else ''}"


def reasons(rows: Iterable[Quarantined]) -> dict[str, int]:
    return dict(sorted(Counter(row.reason for row in rows).items()))


def write_quarantine(path: Path, rows: Iterable[Quarantined]) -> None:
    """One JSON line each. Sources are written without their folder: an artifact says nothing about a machine.

    Half of a surrogate pair, which is no Unicode, is written as its escape, which is JSON.
    """
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for row in rows:
            value = {**asdict(row), "source": Path(row.source).name}
            file.write(json.dumps(value, ensure_ascii=False, sort_keys=True) + "\n")


def enforce_share(rows: Iterable[Quarantined], *, total: int, largest_share: float) -> None:
    """Raise :class:`DataError` with the reasons and first rows if too many of ``total`` were set aside.

    Rows that the configuration asked to leave out (``SELECTED``) do not count.
    """
    if not total:
        raise DataError("expected at least one row, found none")
    defects = (row for row in rows if row.reason not in SELECTED)
    first = list(islice(defects, SHOWN))
    counts = Counter(row.reason for row in first)
    counts.update(row.reason for row in defects)
    bad = counts.total()
    if bad <= largest_share * total:
        return
    most, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
    raise DataError(
        f"{bad} of {total} rows ({bad / total:.1%}) cannot be used, at most {largest_share:.1%} are allowed. "
        f"Most often {most} ({count} rows). By reason: {dict(sorted(counts.items()))}. "
        f"First: {'; '.join(map(str, first))}. Correct the rows or raise max_skipped"
    )
