"""Tokenised documents: what capture and training read. One JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOKENS_FILE = "tokens.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDocument:
    """Token ids of one document and which of them are supervised (content and turn end)."""

    id: str
    split: str
    """``train`` or ``heldout``."""
    kind: str
    ids: list[int]
    supervised: list[bool]
    prompt_length: int
    """Tokens before the first supervised one: a prompt to decode from."""
    finish: str = "unknown"
    """``stop``, ``length`` or, for conversations that were not regenerated, ``unknown``."""
    greedy: bool = False
    """The supervised tokens are the target's own greedy choices."""
    truncated: bool = False

    @property
    def prompt_ids(self) -> list[int]:
        return self.ids[: self.prompt_length]

    @property
    def answer_ids(self) -> list[int]:
        """Everything after the prompt."""
        return self.ids[self.prompt_length :]


def write_documents(path: Path, documents: Iterable[TokenDocument]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for document in documents:
            file.write(json.dumps(_to_json(document), ensure_ascii=False, separators=(",", ":")) + "\n")


def read_documents(path: Path) -> list[TokenDocument]:
    """Documents of a tokens artifact; ``path`` is its directory or the file."""
    file = path / TOKENS_FILE if path.is_dir() else path
    with file.open(encoding="utf-8") as lines:
        return [_from_json(json.loads(line)) for line in lines]


def spans_of(supervised: list[bool]) -> list[list[int]]:
    """Half-open [start, end) runs of true values."""
    edges = [i for i in range(len(supervised) + 1) if _at(supervised, i) != _at(supervised, i - 1)]
    return [list(pair) for pair in zip(edges[::2], edges[1::2], strict=True)]


def _at(values: list[bool], i: int) -> bool:
    return 0 <= i < len(values) and values[i]


def _to_json(document: TokenDocument) -> dict[str, Any]:
    return {
        "id": document.id,
        "split": document.split,
        "kind": document.kind,
        "finish": document.finish,
        "greedy": document.greedy,
        "truncated": document.truncated,
        "prompt_length": document.prompt_length,
        "spans": spans_of(document.supervised),
        "ids": document.ids,
    }


def _from_json(row: dict[str, Any]) -> TokenDocument:
    supervised = [False] * len(row["ids"])
    for start, end in row.pop("spans"):
        supervised[start:end] = [True] * (end - start)
    return TokenDocument(supervised=supervised, **row)
