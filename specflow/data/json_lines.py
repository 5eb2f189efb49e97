"""JSON lines, read one at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from specflow.data.quarantine import DataError

ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
LONG_NUMBER = b"0" * 19
"""Whole numbers of as many digits may need more than 64 bits; orjson would round them."""


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
            try:
                yield number, parsed(line)
            except ValueError as error:
                raise DataError(f"{path}:{number}: {error}") from error
    if not count:
        raise DataError(f"{path}: the file is empty; expected one JSON object with `messages` per line")


def parsed(line: bytes) -> Any:
    """The value of one line. Raises ``ValueError`` that says what was found instead of JSON."""
    if LONG_NUMBER not in line.translate(ZEROS):
        try:
            return orjson.loads(line)
        except orjson.JSONDecodeError:
            pass  # json takes more: NaN, halves of a surrogate pair
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 ({error.reason} at byte {error.start})") from error
    except ValueError as error:
        shown = line[:60].decode("utf-8", "replace").strip()
        raise ValueError(f"expected one JSON object per line, found {shown!r} ({error})") from error
