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

SYNC_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the target produced for one prompt."""

    id: str
    prompt_sha256: str
    tokens: list[int]
    """With the end token if ``finish`` is ``stop``."""
    finish: str


def prompt_hash(ids: Sequence[int]) -> str:
    return sha256(json.dumps(list(ids)).encode()).hexdigest()


def read_answers(path: Path) -> dict[str, Answer]:
    """Answers by id. A last line torn by a kill is cut off the file, so that appending may go on."""
    if not path.exists():
        return {}
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) != len(data):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    found = (Answer(**json.loads(line)) for line in whole.splitlines())
    return {answer.id: answer for answer in found}


class AnswerLog:
    """Appends answers; what was appended ``SYNC_SECONDS`` ago is on the disk."""

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
