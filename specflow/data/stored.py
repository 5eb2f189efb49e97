"""Documents of a tokens artifact, read from the file when they are asked for."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import overload

from specflow.data.documents import TOKENS_FILE, TokenDocument, parse_line
from specflow.data.thinking import mode_name


class StoredDocuments(Sequence[TokenDocument]):
    """In memory are ``ids`` of every document, four bytes each, and where its line begins; not the rest."""

    def __init__(self, path: Path) -> None:
        self._file = (path / TOKENS_FILE if path.is_dir() else path).open("rb")
        self._starts: list[int] = []
        self.ids: list[array[int]] = []
        modes: set[bool | None] = set()
        start = 0
        for line in self._file:
            self._starts.append(start)
            row = json.loads(line)
            self.ids.append(array("i", row["ids"]))
            modes.add(row.get("thinking"))
            start += len(line)
        self.thinking = mode_name(modes)
        """What the documents are rendered in, together."""

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> TokenDocument: ...
    @overload
    def __getitem__(self, index: slice) -> list[TokenDocument]: ...
    def __getitem__(self, index: int | slice) -> TokenDocument | list[TokenDocument]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        self._file.seek(self._starts[index])
        return parse_line(self._file.readline())

    def close(self) -> None:
        self._file.close()
