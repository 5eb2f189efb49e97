"""Finished answers in a file that survives a kill: one JSON line each, appended as they finish."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

SYNC_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the target produced for one turn of one prompt."""

    id: str
    turn: int = 0
    """Which of the turns that are asked for."""
    prompt_sha256: str
    """Of the token ids that the target's template renders: an answer to another prompt is none to this one."""
    text: str
    """Without the end token; special tokens that a server does not take out are in it."""
    finish: str
    """``stop`` (an end token), ``length``, or another reason that a server gave."""
    tokens: Sequence[int] | None = None
    """As produced, with the end token if ``finish`` is ``stop``; none if a server did not tell."""
    token_count: int = 0
    prompt_count: int | None = None
    """Tokens that a server says it read."""
    prompt_ids: Sequence[int] | None = None
    """What a server says it read, where that is not what the target's template renders."""
    reasoning: str | None = None
    """Thoughts that a server took out of the text."""
    tool_calls: list[dict[str, Any]] | None = None

    def message(self) -> dict[str, Any]:
        """The answer as a turn of a conversation."""
        more = {"reasoning_content": self.reasoning, "tool_calls": self.tool_calls}
        return {"role": "assistant", "content": self.text, **{k: v for k, v in more.items() if v}}


def prompt_hash(ids: Sequence[int]) -> str:
    return sha256(json.dumps(list(ids)).encode()).hexdigest()


def read_answers(path: Path) -> dict[tuple[str, int], Answer]:
    """Answers by id and turn. A last line torn by a kill is cut off the file, so that appending may go on."""
    if not path.exists():
        return {}
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) != len(data):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    found = (Answer(**json.loads(line)) for line in whole.split(b"\n") if line)
    return {(answer.id, answer.turn): answer for answer in found}


class AnswerLog:
    """Appends answers. They survive a kill of the process at once, and one of the machine after ``SYNC_SECONDS``."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._synced = time.monotonic()

    def append(self, answer: Answer) -> None:
        self._file.write(json.dumps(asdict(answer)) + "\n")
        self._file.flush()
        if time.monotonic() - self._synced > SYNC_SECONDS:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def __enter__(self) -> AnswerLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
