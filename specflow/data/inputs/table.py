"""The usable rows of all sources as one table, whose columns lie in the files of the chunks.

A row's place counts through the held-out sources first, then through those to train on: of two equal rows the one
with the lower place stays, and that is the held-out one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from specflow.config.inputs import PromptSource
from specflow.data.inputs.chunk import INDEX, index_file, read_index

PART_ROWS: Final = 1 << 18
"""Rows that are sorted at a time."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A chunk that was read."""

    stem: Path
    source: int
    start: int
    """Place of its first usable row."""
    count: int
    """Usable rows within the source's limit."""
    rows: int
    """Rows within the source's limit, usable or not."""
    number: int
    """Numbers of the source before the chunk."""


@dataclass(slots=True)
class Table:
    """Pieces in the order of places."""

    sources: list[PromptSource]
    splits: list[str]
    """Of each source: ``heldout`` or ``train``."""
    pieces: list[Piece] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.pieces[-1].start + self.pieces[-1].count if self.pieces else 0

    @property
    def heldout(self) -> int:
        """Places below this one are held out."""
        return next((p.start for p in self.pieces if self.splits[p.source] == "train"), self.count)

    def of_source(self, source: int) -> list[Piece]:
        return [piece for piece in self.pieces if piece.source == source]

    def index(self) -> Iterator[tuple[Piece, Array]]:
        for piece in self.pieces:
            yield piece, read_index(piece.stem, piece.count)

    def first_places(self) -> Array:
        """Of each source: where its rows begin. Sources without rows share it with the next one."""
        starts = {piece.source: piece.start for piece in reversed(self.pieces)}
        return np.array([starts[source] for source in range(len(self.sources))], dtype=np.int64)

    def thinking(self, places: Array) -> Array:
        """The thinking mode of each row as ``chunk.MODES`` has it; ``places`` ascend."""
        starts = np.array([piece.start for piece in self.pieces])
        owners = np.searchsorted(starts, places, side="right") - 1
        made = np.zeros(len(places), dtype=np.uint8)
        for owner in np.unique(owners).tolist():
            index = np.memmap(index_file(self.pieces[owner].stem), dtype=INDEX, mode="r")
            made[owners == owner] = index["thinking"][places[owners == owner] - starts[owner]]
        return made

    def source_and_number(self, place: int) -> tuple[PromptSource, int]:
        """Where a row stands: its source, and its line or row there."""
        # Of pieces with the same start all but the last are empty.
        piece = self.pieces[bisect_right(self.pieces, place, key=lambda p: p.start) - 1]
        number = read_index(piece.stem, 1, first=place - piece.start)["number"][0]
        return self.sources[piece.source], piece.number + int(number)


def groups(column: Callable[[], Iterator[tuple[int, Array]]], *, part_rows: int = PART_ROWS) -> Iterator[Array]:
    """Ascending places of the rows that share a key, for every key that several rows have.

    ``column`` reads the keys: (first place, keys ``[n]`` or ``[n, 2]`` of 64 bits) piece by piece. It is read once
    per part of the table, so that memory holds a part's keys and not all of them. A key of 0 stands for none.
    """
    total = sum(len(keys) for _, keys in column())
    parts = -(-total // part_rows)
    for part in range(parts):
        yield from _groups_of([_chosen(start, keys, part, parts) for start, keys in column()])


def _chosen(start: int, keys: Array, part: int, parts: int) -> tuple[Array, Array]:
    """(places, keys) of the rows that belong to a part: equal keys are in the same one."""
    keys = keys[:, None] if keys.ndim == 1 else keys
    chosen = np.flatnonzero((keys[:, 0] % np.uint64(parts) == part) & (keys[:, 0] != 0))
    return chosen + start, keys[chosen]


def _groups_of(chosen: list[tuple[Array, Array]]) -> Iterator[Array]:
    places = np.concatenate([places for places, _ in chosen])
    keys = np.concatenate([keys for _, keys in chosen])
    order = np.lexsort((places, *keys.T))
    places, keys = places[order], keys[order]
    edges = np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1
    edges = np.concatenate([[0], edges, [len(keys)]])
    for group in np.flatnonzero(np.diff(edges) > 1):
        yield places[edges[group] : edges[group + 1]]
