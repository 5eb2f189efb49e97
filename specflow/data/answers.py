"""Finished answers in a file that survives a kill: one JSON line each, appended as they finish."""

from __future__ import annotations

import json
import os
import threading
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from specflow.data.quarantine import DataError

Ids: TypeAlias = "array[int]"
"""Token ids at four bytes each: every row of a run is in memory."""
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
    model: str | None = None
    """Name of the model that a server was asked for."""

    def message(self) -> dict[str, Any]:
        """The answer as a turn of a conversation."""
        more = {"reasoning_content": self.reasoning, "tool_calls": self.tool_calls}
        return {"role": "assistant", "content": self.text, **{k: v for k, v in more.items() if v}}


def prompt_hash(ids: Sequence[int]) -> str:
    return sha256(json.dumps(list(ids)).encode()).hexdigest()


def read_answers(path: Path) -> dict[tuple[str, int], Answer]:
    """Answers by id and turn. A last line torn by a kill is cut off the file, so that appending may go on.

    Raises :class:`DataError` that names any other line that is no answer.
    """
    found: dict[tuple[str, int], Answer] = {}
    if not path.exists():
        return found
    whole = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            if line.strip():
                answer = _answer(line, path, number)
                found[answer.id, answer.turn] = answer
    if whole != path.stat().st_size:
        with path.open("r+b") as file:
            file.truncate(whole)
    return found


def packed(ids: Sequence[int] | None) -> Ids | None:
    return None if ids is None else array("i", ids)


def _answer(line: bytes, path: Path, number: int) -> Answer:
    try:
        made = Answer(**json.loads(line))
        return replace(made, tokens=packed(made.tokens), prompt_ids=packed(made.prompt_ids))
    except (ValueError, TypeError) as error:
        shown = line[:60].decode("utf-8", "replace").strip()
        raise DataError(
            f"{path}:{number}: expected an answer as JSON, found {shown!r} ({error}). The file is damaged: delete this "
            "line and run the same command again; only its answer is asked for again"
        ) from error


class AnswerLog:
    """Appends answers. They survive a kill of the process at once, and one of the machine after ``SYNC_SECONDS``."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def append(self, answer: Answer) -> None:
        with self._lock:
            self._file.write(json.dumps(asdict(answer), default=list) + "\n")
            self._file.flush()
            if self._timer is None:  # whether or not another answer comes
                self._timer = threading.Timer(SYNC_SECONDS, self._sync)
                self._timer.daemon = True
                self._timer.start()

    def _sync(self) -> None:
        with self._lock:
            self._timer = None
            if not self._file.closed:
                os.fsync(self._file.fileno())

    def __enter__(self) -> AnswerLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
