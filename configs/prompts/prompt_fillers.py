"""Filler tables: the TOML files under ``sources/``, read into plain typed tables per split."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

Split = Literal["train", "heldout"]
Message = dict[str, str]
SOURCES = Path(__file__).parent / "sources"


def load(name: str) -> dict[str, Any]:
    """The parsed table file ``sources/<name>.toml``."""
    with (SOURCES / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)


def lines(text: str) -> tuple[str, ...]:
    """One entry per non-empty line."""
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def words(text: str) -> tuple[str, ...]:
    """One entry per word."""
    return tuple(text.split())


def commas(text: str) -> tuple[str, ...]:
    """One entry per comma (line ends count as spaces)."""
    return tuple(part for part in (" ".join(entry.split()) for entry in text.split(",")) if part)


def capital(text: str) -> str:
    """First letter in upper case, the rest as it is."""
    return text[:1].upper() + text[1:]


def deck(rng: random.Random, entries: Sequence[str]) -> Iterator[str]:
    """Deal ``entries`` without end, each pass in a new shuffled order, so that all are used about equally often."""
    while True:
        order = list(entries)
        rng.shuffle(order)
        yield from order


def row(*, prefix: str, number: int, task: str, messages: list[Message]) -> dict[str, Any]:
    """One line of a prompt file."""
    return {"id": f"{prefix}-{number:04d}", "task": task, "messages": messages}


def interleave(groups: Mapping[str, Sequence[list[Message]]], *, prefix: str) -> list[dict[str, Any]]:
    """Rows of all tasks in turn (first of each task, second of each task, ...), numbered from 1.

    Every group must have the same length, so that the first rows of the file are balanced over tasks.
    """
    rounds = zip(*groups.values(), strict=True)
    flat = [(task, messages) for turn in rounds for task, messages in zip(groups, turn, strict=True)]
    return [row(prefix=prefix, number=i, task=task, messages=m) for i, (task, m) in enumerate(flat, start=1)]
