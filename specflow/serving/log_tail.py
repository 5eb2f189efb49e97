"""The lines that a growing log got since it was last looked at."""

from __future__ import annotations

from pathlib import Path


class LogTail:
    """``new_lines()`` gives every line once, when it is whole; a log that is not there yet has none."""

    def __init__(self, path: Path) -> None:
        self._path, self._read, self._rest = path, 0, b""

    def new_lines(self) -> list[str]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        # Progress bars write over their line: what stands there in the end is the line.
        return [line.decode("utf-8", errors="replace").rstrip("\r").rpartition("\r")[2] for line in whole]
