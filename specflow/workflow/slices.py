"""Slices of a source that grows: rows ``[i * n, (i + 1) * n)`` are slice ``i``, whatever comes after them.

So there is no cursor to keep: what is new are the rows behind the last whole slice that was used before, and as long
as the source is only appended to, a slice has the same rows, hence the same keys, in every run. The rows are kept as
files of the store, named by their content: a run may take hours, and the source grows meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from specflow.config.inputs import PromptSource
from specflow.config.regenerate import RegenerateParams
from specflow.config.retrain import RetrainParams

FOLDER = ".slices"
NAME_DIGITS = 12
ID = "id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Rows of the source, each a whole line; those held out, and the others."""

    number: int
    train: tuple[bytes, ...]
    heldout: tuple[bytes, ...]

    @property
    def name(self) -> str:
        return f"{self.number:05d}"


def cut(source: Path, *, rows: int, heldout_share: float) -> Iterator[Slice]:
    """Whole slices of ``rows`` rows. Blank lines are no rows; a last line without its end is still being written."""
    with source.open("rb") as file:
        lines = (line for line in file if line.strip() and line.endswith(b"\n"))
        number = 0
        while len(chunk := tuple(islice(lines, rows))) == rows:
            heldout = _held_out(chunk, heldout_share)
            yield Slice(
                number=number,
                train=tuple(line for i, line in enumerate(chunk) if i not in heldout),
                heldout=tuple(line for i, line in enumerate(chunk) if i in heldout),
            )
            number += 1


def sliced(params: RetrainParams, base: RegenerateParams, root: Path) -> dict[str, RegenerateParams]:
    """What ``regenerate`` does for each slice, by its name; the files of the slices are written below ``root``."""
    source = params.source
    if source is None or source.path is None:
        return {}
    found = list(cut(source.path, rows=params.slice_rows, heldout_share=params.heldout_share))
    return {
        part.name: base.model_copy(
            update={
                "train": (_kept(source, part, "train", part.train, root),),
                "heldout": (_kept(source, part, "heldout", part.heldout, root),),
            }
        )
        for part in (found[-params.newest :] if params.newest else found)
    }


def _held_out(lines: Sequence[bytes], share: float) -> set[int]:
    """The rows with the lowest hashes, at least one and never all; equal prompts are on the same side."""
    count = min(len(lines) - 1, max(1, round(share * len(lines))))
    hashes = [_hash(line) for line in lines]
    limit = sorted(hashes)[count - 1]
    chosen = {i for i, value in enumerate(hashes) if value <= limit}
    # Copies of the last one chosen may make it all of them.
    return chosen if len(chosen) < len(lines) else set(list(chosen)[:count])


def _hash(line: bytes) -> str:
    """Of the row without its id, under which a service may ask the same again."""
    try:
        row: Any = json.loads(line)
    except ValueError:
        row = line.decode("utf-8", errors="replace")
    if isinstance(row, dict):
        row = {name: value for name, value in row.items() if name != ID}
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()


def _kept(source: PromptSource, part: Slice, split: str, lines: Sequence[bytes], root: Path) -> PromptSource:
    """The rows as a file that never changes, and the source that reads it."""
    data = b"".join(lines)
    assert source.path is not None
    folder = root / FOLDER / hashlib.sha256(data).hexdigest()[:NAME_DIGITS]
    path = folder / f"{source.path.stem}-{part.name}-{split}.jsonl"
    if not path.exists() or path.read_bytes() != data:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(path)
    return source.model_copy(update={"path": path})
