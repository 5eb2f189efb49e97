"""JSON lines that are appended to while work goes on, and read again after a kill."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def read_whole_lines(path: Path, read: Callable[[Any], T]) -> list[T]:
    """``read(row)`` of each line up to the first that is torn, which is cut off the file together with what follows.

    ``read`` raises ``ValueError``, ``KeyError`` or ``TypeError`` on a row of another form. The file is replaced in one
    step, so a kill loses no finished line.
    """
    found: list[T] = []
    whole: list[bytes] = []
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    for line in lines:
        try:
            found.append(read(json.loads(line)))
        except (ValueError, KeyError, TypeError):
            break
        whole.append(line if line.endswith(b"\n") else line + b"\n")
    if whole != lines:
        partial = path.with_name(path.name + ".partial")
        partial.write_bytes(b"".join(whole))
        partial.replace(path)
    return found
