"""Tokenised documents: what capture and training read. One JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
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
    """The supervised tokens are the target's own greedy choices, given the tokens of this document before them."""
    truncated: bool = False
    conversation: str = ""
    """The row of ``conversations.jsonl`` that it comes from."""
    offset: int = 0
    """First token of this window in its document; a window starts again at position 0."""
    thinking: bool | None = None
    """The thinking mode it was rendered in; none: the template's default."""

    @property
    def supervised_share(self) -> float:
        return sum(self.supervised) / len(self.ids)

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
            file.write(document_line(document))


def document_line(document: TokenDocument) -> str:
    """The document as a line of ``tokens.jsonl``, with its line end."""
    about = json.dumps(_about(document), ensure_ascii=False, separators=(",", ":"))
    # json formats every number anew, which is a good part of the work on a row.
    return f'{about[:-1]},"ids":[{",".join(map(_DECIMALS.__getitem__, document.ids))}]}}\n'


class _Decimals(dict[int, str]):
    """Numbers as text, formed once."""

    def __missing__(self, number: int) -> str:
        self[number] = text = str(int(number))
        return text


_DECIMALS = _Decimals()


def read_documents(path: Path) -> list[TokenDocument]:
    """Documents of a tokens artifact; ``path`` is its directory or the file."""
    return list(iterate_documents(path))


def iterate_documents(path: Path) -> Iterator[TokenDocument]:
    """The same, one at a time."""
    file = path / TOKENS_FILE if path.is_dir() else path
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            yield parse_line(line)


def parse_line(line: str | bytes) -> TokenDocument:
    """The document of a line of ``tokens.jsonl``."""
    return _from_json(json.loads(line))


def spans_of(supervised: list[bool]) -> list[list[int]]:
    """Half-open [start, end) runs of true values."""
    spans = []
    start = _next(supervised, True, 0)
    while start < len(supervised):
        end = _next(supervised, False, start)
        spans.append([start, end])
        start = _next(supervised, True, end)
    return spans


def _next(values: list[bool], wanted: bool, start: int) -> int:
    """Index of the first ``wanted`` value from ``start`` on; the length if there is none."""
    try:
        return values.index(wanted, start)
    except ValueError:
        return len(values)


def _about(document: TokenDocument) -> dict[str, Any]:
    return {
        "id": document.id,
        "split": document.split,
        "kind": document.kind,
        "finish": document.finish,
        "greedy": document.greedy,
        "truncated": document.truncated,
        "conversation": document.conversation,
        "offset": document.offset,
        "thinking": document.thinking,
        "prompt_length": document.prompt_length,
        "spans": spans_of(document.supervised),
    }


def _from_json(row: dict[str, Any]) -> TokenDocument:
    supervised = [False] * len(row["ids"])
    for start, end in row.pop("spans"):
        supervised[start:end] = [True] * (end - start)
    return TokenDocument(supervised=supervised, **row)
