"""One chunk: its usable rows and its bad ones, each in a file, and what is needed to compare rows, in arrays on disk.

Files of a chunk, by suffix: ``rows`` (JSON lines), ``bad`` (JSON lines), ``index`` (an ``INDEX`` record per row),
``asked`` (``ASKED`` records, where every turn is asked for) and, where nearly equal rows are looked for, ``signatures``
and ``bands``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from specflow.config.inputs import InputParams, PromptSource
from specflow.data.inputs.asked import ASKED, asked_contents
from specflow.data.inputs.readers import BLANK, Chunk
from specflow.data.inputs.readers.blank import Unreadable
from specflow.data.inputs.rows import Row, content_of, row_id, to_json, to_row
from specflow.data.inputs.signatures import PERMUTATIONS, Keys, Signatures, Signer
from specflow.data.tools import Malformed

MODES: Final = (None, False, True)
INDEX: Final = np.dtype(
    [("content", "<u8", (2,)), ("id", "<u8"), ("number", "<u4"), ("ordinal", "<u4"), ("thinking", "u1")]
)
"""Per usable row: 128-bit hash of messages and tools; hash of the id, 0 if it has none; number in the chunk
(1-based); how many rows of the chunk, usable or not, stand before it; place of its thinking mode in ``MODES``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a worker is asked to do."""

    chunk: Chunk
    source: PromptSource
    form: str
    params: InputParams
    stem: Path
    """The chunk's files without their suffix."""
    every_turn: bool = False
    """The target answers every turn: what each is asked with is compared, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a worker found; its numbers count from the start of the chunk."""

    rows: int
    """Usable or not."""
    numbers: int
    """The last number: rows and empty lines."""
    usable: int
    unreadable: tuple[int, str] | None = None
    """Number and message of the row at which reading stopped."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A row that was set aside while it was read."""

    ordinal: int
    number: int
    reason: str
    detail: str
    id: str | None


def work(task: Task) -> Report:
    """Read one chunk; rows beyond the source's ``limit`` are left. What was there before is written over."""
    entries: list[tuple[tuple[int, int], int, int, int, int]] = []
    asked: list[tuple[tuple[int, int], int]] = []
    signer = Signer(task.params.near_duplicates)
    ordinal = number = 0
    unreadable = None
    with _file(task.stem, "rows").open("wb") as good, _file(task.stem, "bad").open("wb") as bad:
        try:
            for number, value in task.chunk.rows():
                if value is BLANK:
                    continue
                if ordinal == task.source.limit:
                    break
                try:
                    row = to_row(value, form=task.form, source=task.source, params=task.params)
                    content = content_of(row)
                    good.write(_line(row))
                except Malformed as error:
                    bad.write(_bad_line(ordinal, number, error, value, task.source))
                else:
                    if task.every_turn:
                        asked += ((_halves(turn), len(entries)) for turn in asked_contents(row))
                    entries.append((_halves(content), _hash(row.id), number, ordinal, MODES.index(row.thinking)))
                    signer.add(row.messages)
                ordinal += 1
        except Unreadable as error:
            number = error.number
            unreadable = (number, error.message)
    np.array(entries, dtype=INDEX).tofile(_file(task.stem, "index"))
    np.array(asked, dtype=ASKED).tofile(_file(task.stem, "asked"))
    signer.write(_file(task.stem, "signatures"), _file(task.stem, "bands"))
    return Report(rows=ordinal, numbers=number, usable=len(entries), unreadable=unreadable)


def read_index(stem: Path, count: int, *, first: int = 0) -> np.ndarray[Any, Any]:
    """``count`` of the ``INDEX`` records of a chunk."""
    return np.fromfile(_file(stem, "index"), dtype=INDEX, count=count, offset=first * INDEX.itemsize)


def read_asked(stem: Path, count: int) -> np.ndarray[Any, Any]:
    """The ``ASKED`` records of the first ``count`` rows."""
    records = np.fromfile(_file(stem, "asked"), dtype=ASKED)
    return records[records["row"] < count]


def read_bands(stem: Path, band: int, count: int) -> Keys:
    """Hashes of one band, of the first ``count`` rows."""
    rows = _file(stem, "index").stat().st_size // INDEX.itemsize
    offset = band * rows * np.dtype(np.uint64).itemsize
    return np.fromfile(_file(stem, "bands"), dtype=np.uint64, count=count, offset=offset)


def read_signatures(stem: Path, rows: np.ndarray[Any, Any]) -> Signatures:
    """``[len(rows), PERMUTATIONS]``."""
    # Unmapped when it goes: the pages of a table larger than memory do not stay.
    stored = np.memmap(_file(stem, "signatures"), dtype=np.uint32, mode="r").reshape(-1, PERMUTATIONS)
    return np.array(stored[rows])


def read_rows(stem: Path) -> Iterator[bytes]:
    """The usable rows, as lines of JSON."""
    with _file(stem, "rows").open("rb") as lines:
        yield from lines


def read_bad(stem: Path) -> Iterator[Bad]:
    with _file(stem, "bad").open("rb") as lines:
        yield from (Bad(*orjson.loads(line)) for line in lines)


def parse_row(line: bytes) -> Row:
    """A line of ``read_rows``."""
    return Row(**orjson.loads(line))


def _line(row: Row) -> bytes:
    value = {
        "id": row.id,
        "messages": row.messages,
        "tools": row.tools,
        "thinking": row.thinking,
        "answered": row.answered,
    }
    return to_json(value) + b"\n"


def _bad_line(ordinal: int, number: int, error: Malformed, value: Any, source: PromptSource) -> bytes:
    made: list[int | str | None] = [ordinal, number, error.reason, _printable(error.detail)]
    found = row_id(value, source)
    return to_json([*made, None if found is None else _printable(found)]) + b"\n"


def _printable(text: str) -> str:
    """Bad rows may hold bad text, which still has to be written down."""
    return text[:500].encode("utf-8", "backslashreplace").decode()


def _halves(content: bytes) -> tuple[int, int]:
    digest = hashlib.blake2b(content, digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def _hash(text: str | None) -> int:
    if text is None:
        return 0
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).digest(), "little")


def index_file(stem: Path) -> Path:
    return _file(stem, "index")


def _file(stem: Path, suffix: str) -> Path:
    return stem.with_name(f"{stem.name}.{suffix}")
