"""Rows that cannot be used: set aside with a reason, counted, and limited in number."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


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


def reasons(rows: Sequence[Quarantined]) -> dict[str, int]:
    return dict(sorted(Counter(row.reason for row in rows).items()))


def write_quarantine(path: Path, rows: Sequence[Quarantined]) -> None:
    """One JSON line each. Sources are written without their folder: an artifact says nothing about a machine."""
    values = ({**asdict(row), "source": Path(row.source).name} for row in rows)
    lines = (json.dumps(value, ensure_ascii=False, sort_keys=True) + "\n" for value in values)
    path.write_text("".join(lines), encoding="utf-8")


def enforce_share(rows: Sequence[Quarantined], *, total: int, largest_share: float) -> None:
    """Raise :class:`DataError` with the reasons and first rows if too many of ``total`` were set aside."""
    if total and len(rows) <= largest_share * total:
        return
    if not total:
        raise DataError("expected at least one row, found none")
    first = "; ".join(f"{r.source}:{r.row}: {r.reason}{f' ({r.detail})' if r.detail else ''}" for r in rows[:5])
    raise DataError(
        f"{len(rows)} of {total} rows ({len(rows) / total:.1%}) cannot be used, "
        f"at most {largest_share:.1%} are allowed. "
        f"By reason: {reasons(rows)}. First: {first}. Correct the rows or raise max_skipped"
    )
