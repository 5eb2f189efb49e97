"""One JSON array of rows, decoded row by row, so that memory holds one row and not the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from specflow.data.inputs.readers.blank import Unreadable

BLOCK = 1 << 20
SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class ArrayChunk:
    """A whole file: where a row starts cannot be known without reading what stands before it."""

    path: Path

    def rows(self) -> Iterator[tuple[int, Any]]:
        number = 0
        with self.path.open(encoding="utf-8-sig") as file:
            try:
                for number, value in enumerate(_values(file), start=1):
                    yield number, value
            except UnicodeDecodeError as error:
                raise Unreadable(number + 1, f"not UTF-8 ({error.reason})") from error
            except ValueError as error:
                raise Unreadable(number + 1, f"expected a JSON array of rows: {error}") from error


def is_array(path: Path) -> bool:
    """Whether the first character says so; otherwise the file is taken for JSON lines."""
    with path.open("rb") as file:
        return file.read(BLOCK).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["


def _values(file: TextIO) -> Iterator[Any]:
    decode = json.JSONDecoder().raw_decode
    text = file.read(BLOCK).lstrip(SPACE)
    position, expected = 1, "],"  # behind the bracket
    while True:
        position = _skip_space(text, position)
        if position >= len(text):
            more = file.read(BLOCK)
            if not more:
                raise ValueError("the array does not end")
            text, position = more, 0
            continue
        if text[position] == "]":
            if (text[position + 1 :] + file.read()).strip(SPACE):
                raise ValueError("something follows the array")
            return
        if expected == ",":
            if text[position] != ",":
                raise ValueError(f"found {text[position : position + 20]!r} between two rows")
            position, expected = position + 1, ""
            continue
        text, (value, position) = _value(decode, file, text[position:])
        expected = ","
        yield value


def _value(decode: Any, file: TextIO, text: str) -> tuple[str, tuple[Any, int]]:
    """The value at the start of ``text``, which is read on until the value has ended."""
    while True:
        try:
            value, end = decode(text)
            # A number at the end of the text may go on in the next block.
            if _skip_space(text, end) < len(text):
                return text, (value, end)
            more = file.read(BLOCK)
            if not more:
                return text, (value, end)
        except ValueError:
            more = file.read(max(BLOCK, len(text)))
            if not more:
                raise
        text += more


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in SPACE:
        position += 1
    return position
