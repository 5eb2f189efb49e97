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
        rows = read_whole_lines(path, _row)
        self._tokens = {index: tokens for index, tokens, _ in rows}
        self._accepted = {index: accepted for index, _, accepted in rows}

    def __contains__(self, index: object) -> bool:
        return index in self._tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> list[int]:
        return self._tokens[index]

    def accepted(self, index: int) -> list[int]:
        """Proposals accepted in each round of the request; empty where they were not kept."""
        return self._accepted[index]

    def add(self, index: int, tokens: Sequence[int], *, accepted: Sequence[int] = ()) -> None:
        self._tokens[index], self._accepted[index] = list(tokens), list(accepted)
        row: dict[str, Any] = {"index": index, "tokens": list(tokens)}
        if accepted:
            row["accepted"] = list(accepted)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")


def _row(row: Any) -> tuple[int, list[int], list[int]]:
    return int(row["index"]), [int(t) for t in row["tokens"]], [int(count) for count in row.get("accepted", ())]
