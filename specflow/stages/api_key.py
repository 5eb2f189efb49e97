"""The key of a server, from the file that an option names."""

from __future__ import annotations

from pathlib import Path

from specflow.stages.contract import StageError


def read_api_key(path: Path | None, *, option: str) -> str | None:
    """None where no file is named; raises ``StageError`` naming ``option`` if the file is not one line of text."""
    if path is None:
        return None
    key = path.read_text(encoding="utf-8").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise StageError(f"{option} {path}: expected one line with the key")
    return key
