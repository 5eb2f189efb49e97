"""What was read from source files before, kept by content: parsing all of ours takes seconds in every command."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

Entry = tuple[str, list[str]]
"""Digest of the syntax tree, and the names that the file imports."""

MOST_ENTRIES = 5000


class SyntaxCache:
    """Entries by package and content, so that an edited file is never taken for what it was.

    ``reader`` is the file with the code that makes entries: another version of it, or of Python, has a cache of its
    own. A cache that cannot be read or written is empty.
    """

    def __init__(self, reader: Path, *, prefix: Path | None = None) -> None:
        version = hashlib.sha256(reader.read_bytes() + sys.version.encode()).hexdigest()[:16]
        self._path = Path(prefix or sys.prefix) / "var" / "specflow" / f"syntax-{version}.json"
        self._entries = _read(self._path)
        self._new: dict[str, Entry] = {}

    def entry(self, package: str, content: bytes, make: Callable[[], Entry]) -> Entry:
        """The entry of a file; made if it is not known."""
        key = f"{package}:{hashlib.sha256(content).hexdigest()}"
        found = self._entries.get(key)
        if found is None:
            found = self._entries[key] = self._new[key] = make()
        return found

    def keep(self) -> None:
        """Write what is new, beside what other processes wrote meanwhile."""
        if not self._new:
            return
        merged = {**_read(self._path), **self._new}
        if len(merged) > MOST_ENTRIES:
            merged = dict(self._new)
        self._new = {}
        partial = self._path.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                partial.write_text(json.dumps(merged), encoding="utf-8")
                partial.replace(self._path)
            finally:
                partial.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Entry]:
    try:
        entries = json.loads(path.read_bytes())
        return {str(key): (str(digest), [str(name) for name in names]) for key, (digest, names) in entries.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
