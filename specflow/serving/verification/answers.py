"""Answers with their rounds, from a server or from the embedded engine, kept so that a killed run continues."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specflow.serving.lines import read_whole_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one prompt got."""

    tokens: tuple[int, ...]
    accepted: tuple[int, ...]
    """Rounds by the number of proposals accepted in them, before any cut: ``accepted[r]`` rounds accepted ``r``."""


def histogram(accepted: Iterable[int]) -> tuple[int, ...]:
    """Rounds by the number of proposals that each accepted."""
    counts = Counter(accepted)
    return tuple(counts[r] for r in range(max(counts, default=-1) + 1))


def served_answer(reply: Mapping[str, Any]) -> Answer:
    """From a reply of SGLang's ``/generate``.

    Raises ``ValueError`` where it has no token ids, or its counters contradict each other.
    """
    meta = reply["meta_info"]
    tokens, counts = reply.get("output_ids"), meta.get("spec_correct_drafts_histogram") or []
    if not isinstance(tokens, list) or not tokens:
        raise ValueError(f"expected output_ids in the reply, found {tokens!r}")
    rounds, accepted = int(meta.get("spec_verify_ct") or 0), int(meta.get("spec_num_correct_drafts") or 0)
    if sum(counts) != rounds or sum(r * n for r, n in enumerate(counts)) != accepted:
        raise ValueError(f"expected {rounds} rounds that accept {accepted} proposals, found the histogram {counts}")
    while counts and counts[-1] == 0:
        counts = counts[:-1]
    return Answer(tokens=tuple(tokens), accepted=tuple(counts))


class Answers:
    """Answers by index of the request; one JSON line each, flushed as it is written. A torn last line is dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._answers: dict[int, Answer] = dict(read_whole_lines(path, _row))

    def __contains__(self, index: object) -> bool:
        return index in self._answers

    def __len__(self) -> int:
        return len(self._answers)

    def __getitem__(self, index: int) -> list[int]:
        """The tokens alone."""
        return list(self._answers[index].tokens)

    def answer(self, index: int) -> Answer:
        return self._answers[index]

    def forget(self) -> None:
        """Drop every answer, here and in the file."""
        self._answers.clear()
        self._path.unlink(missing_ok=True)

    def add(self, index: int, answer: Answer) -> None:
        self._answers[index] = answer
        row = {"index": index, "tokens": list(answer.tokens), "accepted": list(answer.accepted)}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")


def _row(row: Any) -> tuple[int, Answer]:
    tokens, accepted = ([int(n) for n in row[key]] for key in ("tokens", "accepted"))
    return int(row["index"]), Answer(tokens=tuple(tokens), accepted=tuple(accepted))
