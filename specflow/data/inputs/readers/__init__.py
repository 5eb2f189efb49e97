"""Sources cut into chunks. ``plan`` finds the reader by what the source is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from specflow.config.inputs import PromptSource
from specflow.data.inputs.readers import hub, json_array, json_lines, parquet
from specflow.data.inputs.readers.blank import BLANK, Blank
from specflow.data.quarantine import DataError

CHUNK_BYTES: Final = 16 << 20

resolved = hub.resolved

__all__ = ["BLANK", "CHUNK_BYTES", "Blank", "Chunk", "Plan", "files_of", "plan", "resolved"]


class Chunk(Protocol):
    """A part of a source that a process can read on its own; small when pickled."""

    def rows(self) -> Iterator[tuple[int, Any]]:
        """(1-based number within the chunk, value) of each row; ``BLANK`` for a number that holds none.

        Raises :class:`specflow.data.inputs.readers.blank.Unreadable` at a row that cannot be read.
        """
        ...


class Plan(NamedTuple):
    chunks: list[Chunk]
    in_lines: bool
    """Numbers are lines of a text file."""


def plan(source: PromptSource, *, chunk_bytes: int = CHUNK_BYTES) -> Plan:
    """The chunks of a source in their order: the same on every machine. Raises :class:`DataError`."""
    path = source.path
    if path is None or path.is_dir():
        return Plan(list(hub.chunks(source)), False)
    if not path.is_file():
        raise DataError(f"{path}: expected a file of prompts or the directory of a dataset, found nothing")
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return Plan(list(parquet.chunks(path, chunk_bytes=chunk_bytes)), False)
    if suffix == ".json" and json_array.is_array(path):
        return Plan([json_array.ArrayChunk(path)], False)
    return Plan(list(json_lines.chunks(path, chunk_bytes=chunk_bytes)), True)


def files_of(source: PromptSource) -> list[Path]:
    """The files whose content decides what the source holds; none for a dataset of the hub."""
    if source.path is None:
        return []
    if source.path.is_dir():
        hidden = (p for p in sorted(source.path.rglob("*")) if p.is_file())
        return [p for p in hidden if not any(part.startswith(".") for part in p.relative_to(source.path).parts)]
    return [source.path]
