"""Rows of conversations and of token documents as pieces of text that say what each is: to be looked at."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specflow.data.documents import TokenDocument, iterate_documents

CONVERSATIONS_FILE = "conversations.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Text of one or more neighbouring tokens of the same sort."""

    text: str
    """A part of a character is written as ``\\xe6``."""
    supervised: bool
    special: bool = False
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One row. ``tokens`` and ``supervised_tokens`` are none where the row has no ids."""

    row: int
    id: str
    split: str
    kind: str
    notes: Mapping[str, Any] = field(default_factory=dict)
    tokens: int | None = None
    supervised_tokens: int | None = None
    pieces: tuple[Piece, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What the ids of a tokenizer stand for."""

    pieces: Sequence[bytes] = ()
    special: Collection[int] = ()

    def text(self, ids: Sequence[int]) -> str:
        """Without a tokenizer, or beyond its ids, the ids themselves."""
        parts = [self.pieces[i] if i < len(self.pieces) and self.pieces[i] else f"<{i}>".encode() for i in ids]
        return b"".join(parts).decode("utf-8", "backslashreplace")


def load_words(target: Path) -> Words:
    """The words of a target's tokenizer."""
    from specflow.data.token_bytes import token_bytes
    from specflow.data.tokenizer import load_tokenizer

    tokenizer, _ = load_tokenizer(target)
    return Words(pieces=token_bytes(tokenizer, len(tokenizer)), special=frozenset(tokenizer.added_tokens_decoder))


def pieces_of(ids: Sequence[int], supervised: Sequence[bool], words: Words, *, each: bool) -> tuple[Piece, ...]:
    """Runs of tokens of the same sort, special tokens alone; with ``each``, every token alone."""

    def sort(position: int) -> tuple[bool, bool, int]:
        special = ids[position] in words.special
        return supervised[position], special, position if each or special else -1

    runs = [list(run) for _, run in itertools.groupby(range(len(ids)), sort)]
    return tuple(
        Piece(
            text=words.text([ids[i] for i in run]),
            supervised=supervised[run[0]],
            special=ids[run[0]] in words.special,
            ids=tuple(ids[i] for i in run),
        )
        for run in runs
    )


def views(path: Path, words: Words, *, each: bool) -> Iterator[View]:
    """Rows of a conversations or tokens artifact (its directory, or the file), in order, numbered from 1.

    Raises ``FileNotFoundError`` for a directory that holds neither.
    """
    file = path / CONVERSATIONS_FILE if path.is_dir() else path
    if file.exists() and not (path.is_file() and _is_tokens(path)):
        with file.open(encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                yield _conversation(number, json.loads(line), words, each=each)
        return
    for number, document in enumerate(iterate_documents(path), start=1):
        yield _document(number, document, words, each=each)


def _is_tokens(path: Path) -> bool:
    """Whether a file holds token documents: a conversation has messages."""
    try:
        with path.open(encoding="utf-8") as lines:
            return "messages" not in json.loads(next(lines, "{}"))
    except ValueError:
        return True


def _document(number: int, document: TokenDocument, words: Words, *, each: bool) -> View:
    return View(
        row=number,
        id=document.id,
        split=document.split,
        kind=document.kind,
        notes={"finish": document.finish, "greedy": document.greedy, "truncated": document.truncated},
        tokens=len(document.ids),
        supervised_tokens=sum(document.supervised),
        pieces=pieces_of(document.ids, document.supervised, words, each=each),
    )


def _conversation(number: int, row: Mapping[str, Any], words: Words, *, each: bool) -> View:
    names = ("finish", "greedy", "thinking")
    notes = {name: row[name] for name in names if row.get(name) is not None}
    if row.get("turns"):
        notes["turns"] = len(row["turns"])
    common: dict[str, Any] = {
        "row": number, "id": str(row.get("id", "")), "split": str(row.get("split", "")),
        "kind": str(row.get("kind", "")), "notes": notes,
    }  # fmt: skip
    if not row.get("answer_ids") or not words.pieces:
        return View(**common, pieces=tuple(_messages(row["messages"], row.get("answered"))))
    prompt, answer = list(row["prompt_ids"]), list(row["answer_ids"])
    mask = [False] * len(prompt) + [True] * len(answer)
    return View(
        **common,
        tokens=len(mask),
        supervised_tokens=len(answer),
        pieces=pieces_of(prompt + answer, mask, words, each=each),
    )


def _messages(messages: Sequence[Mapping[str, Any]], answered: Collection[int] | None) -> Iterator[Piece]:
    for place, message in enumerate(messages):
        mine = message["role"] == "assistant" and (answered is None or place in answered)
        yield Piece(text=f"{message['role']}: ", supervised=False, special=True)
        for name in ("reasoning_content", "content", "tool_calls"):
            value = message.get(name)
            if value:
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                yield Piece(text=f"{text}\n", supervised=mine)
