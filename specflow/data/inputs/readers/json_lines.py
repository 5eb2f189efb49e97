"""JSON lines: chunks are ranges of bytes; a line belongs to the range in which it starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specflow.data.inputs.readers.blank import BLANK, Unreadable
from specflow.data.json_lines import parsed

MARK = b"\xef\xbb\xbf"
"""Some editors begin a UTF-8 file with this."""


@dataclass(frozen=True, slots=True)
class LinesChunk:
    path: Path
    start: int
    end: int

    def rows(self) -> Iterator[tuple[int, Any]]:
        with self.path.open("rb") as file:
            position = self._first_line(file)
            number = 0
            while position < self.end:
                line = file.readline()
                if not line:
                    return
                text = line.removeprefix(MARK) if position == 0 else line
                position += len(line)
                number += 1
                if not text.strip():
                    yield number, BLANK
                    continue
                try:
                    value = parsed(text)
                except ValueError as error:
                    raise Unreadable(number, str(error)) from error
                yield number, value

    def _first_line(self, file: Any) -> int:
        """Go to the first line that starts in the range."""
        if self.start == 0:
            return 0
        file.seek(self.start - 1)
        return self.start - 1 + len(file.readline())


def chunks(path: Path, *, chunk_bytes: int) -> Iterator[LinesChunk]:
    size = path.stat().st_size
    for start in range(0, size, chunk_bytes):
        yield LinesChunk(path, start, min(start + chunk_bytes, size))
