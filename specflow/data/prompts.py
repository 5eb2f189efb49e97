"""Prompts from JSON lines in the OpenAI ``messages`` form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specflow.data.conversations import Message, clean, defect
from specflow.data.quarantine import DataError, Quarantined


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt, ready to be rendered; its last message is the user's."""

    id: str
    split: str
    kind: str
    messages: list[Message]
    source: str
    row: int


@dataclass(slots=True, kw_only=True)
class Prompts:
    """What a set of files held."""

    rows: list[Prompt] = field(default_factory=list)
    quarantined: list[Quarantined] = field(default_factory=list)
    total: int = 0


def read_json_lines(path: Path, *, limit: int | None = None) -> Iterator[tuple[int, Any]]:
    """(1-based line number, value) of each non-blank line.

    Raises :class:`DataError` for a missing or empty file and for a line that is not JSON.
    """
    if not path.is_file():
        raise DataError(f"{path}: expected a file of JSON lines, found {'a directory' if path.is_dir() else 'nothing'}")
    count = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            if limit is not None and count >= limit:
                return
            count += 1
            yield number, _parsed(line, where=f"{path}:{number}")
    if not count:
        raise DataError(f"{path}: the file is empty; expected one JSON object with `messages` per line")


def _parsed(line: bytes, *, where: str) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 ({error.reason} at byte {error.start})") from error
    except ValueError as error:
        shown = line[:60].decode("utf-8", "replace").strip()
        raise DataError(f"{where}: expected one JSON object per line, found {shown!r} ({error})") from error


def read_prompts(path: Path, *, split: str, kind: str, limit: int | None = None) -> Prompts:
    """Read and validate one file. Bad rows are quarantined; a file without one good row is an error.

    A row's id is its ``id`` key, or ``split/kind/file/line``.
    """
    result = Prompts()
    for number, value in read_json_lines(path, limit=limit):
        result.total += 1
        reason, detail = _row_defect(value)
        if reason:
            row_id = str(value["id"]) if isinstance(value, dict) and "id" in value else None
            bad = Quarantined(source=str(path), row=number, reason=reason, detail=detail, id=row_id)
            result.quarantined.append(bad)
            continue
        row_id = str(value.get("id", f"{split}/{kind}/{path.stem}/{number:05d}"))
        messages = clean(value["messages"])
        result.rows.append(Prompt(id=row_id, split=split, kind=kind, messages=messages, source=str(path), row=number))
    if not result.rows:
        first = result.quarantined[0]
        raise DataError(
            f"{path}: none of {result.total} rows is a usable prompt; the first bad one is line {first.row}: "
            f"{first.reason}{f' ({first.detail})' if first.detail else ''}. Expected "
            '{"messages": [{"role": "user", "content": "..."}]} per line'
        )
    return result


def _row_defect(value: Any) -> tuple[str, str]:
    if not isinstance(value, dict):
        return "not_an_object", type(value).__name__
    if "messages" not in value:
        return "no_messages", f"keys: {sorted(map(str, value))}"
    return defect(value["messages"], last="user") or ("", "")


def merge(parts: list[Prompts]) -> Prompts:
    """Join files in order. Repeated ids, and training rows that are also held out, are quarantined."""
    merged = Prompts(total=sum(p.total for p in parts))
    rows = [row for part in parts for row in part.rows]
    heldout = {_content(row) for row in rows if row.split == "heldout"}
    bad = [q for part in parts for q in part.quarantined]
    seen: dict[str, Prompt] = {}
    for row in rows:
        if row.split != "heldout" and _content(row) in heldout:
            bad.append(_quarantined(row, "also_heldout", "the same messages are in the held-out set"))
        elif row.id in seen:
            first = seen[row.id]
            bad.append(_quarantined(row, "repeated_id", f"first used at {Path(first.source).name}:{first.row}"))
        else:
            seen[row.id] = row
            merged.rows.append(row)
    merged.quarantined = bad
    return merged


def _content(row: Prompt) -> str:
    return json.dumps(row.messages, sort_keys=True)


def _quarantined(row: Prompt, reason: str, detail: str) -> Quarantined:
    return Quarantined(source=row.source, row=row.row, reason=reason, detail=detail, id=row.id)
