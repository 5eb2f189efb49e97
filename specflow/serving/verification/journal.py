"""Finished prompts of a decoding run, kept so that a killed run continues."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specflow.serving.lines import read_whole_lines


class Journal:
    """Tokens by request index; one JSON line each, flushed as it is written. A torn last line is dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokens: dict[int, list[int]] = dict(read_whole_lines(path, _row))

    def __contains__(self, index: object) -> bool:
        return index in self._tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> list[int]:
        return self._tokens[index]

    def add(self, index: int, tokens: Sequence[int]) -> None:
        self._tokens[index] = list(tokens)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"index": index, "tokens": list(tokens)}, separators=(",", ":")) + "\n")


def _row(row: Any) -> tuple[int, list[int]]:
    return int(row["index"]), [int(t) for t in row["tokens"]]
