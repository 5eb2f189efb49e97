"""Finished prompts of a decoding run, kept so that a killed run continues."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path


class Journal:
    """Tokens by request index; one JSON line each, flushed as it is written. A torn last line is dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokens: dict[int, list[int]] = {}
        whole = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                row = json.loads(line)
                self._tokens[int(row["index"])] = [int(t) for t in row["tokens"]]
            except (ValueError, KeyError, TypeError):
                break
            whole.append(line)
        if path.exists():
            path.write_text("".join(line + "\n" for line in whole), encoding="utf-8")

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
