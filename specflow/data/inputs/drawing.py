"""Which rows a mixture takes from each source, and in which order they come.

Without weights: all rows, source by source. With weights: as many rows as the weights allow without using one twice,
or ``rows`` of them; the sources alternate in proportion, each in its own order. Which rows of a source are drawn
depends on the seed and on the rows' content, not on where they stand.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from specflow.data.inputs.signatures import mixed
from specflow.data.inputs.table import Array, Table
from specflow.data.inputs.verdicts import Verdict, Verdicts

BINS = 1 << 16


def shares_of(available: Sequence[int], weights: Sequence[float] | None, rows: int | None) -> list[int]:
    """Rows to take from each source that has ``available`` ones."""
    if weights is None and rows is None:
        return list(available)
    # As written: 0.1 and 0.3 are one to three, which their binary forms are not.
    relative = [Fraction(str(weight)) for weight in weights] if weights else [Fraction(count) for count in available]
    whole = sum(relative)
    if not whole:
        return [0] * len(available)
    parts = [part / whole for part in relative]
    most = math.floor(min(count / part for count, part in zip(available, parts, strict=True) if part))
    total = most if rows is None else min(rows, most)
    counts = [math.floor(part * total) for part in parts]
    by_rest = sorted(range(len(parts)), key=lambda i: (counts[i] - parts[i] * total, i))
    for i in by_rest[: total - sum(counts)]:
        counts[i] += 1
    return counts


def draw(table: Table, verdicts: Verdicts, source: int, *, count: int, seed: int) -> None:
    """Keep ``count`` of the source's kept rows: those with the smallest hash of seed and content."""

    def column() -> Iterator[tuple[Array, Array]]:
        return _priorities(table, verdicts, source, seed)

    histogram = np.zeros(BINS, dtype=np.int64)
    for _, priorities in column():
        histogram += np.bincount((priorities >> np.uint64(48)).astype(np.int64), minlength=BINS)
    if histogram.sum() <= count:
        return
    below = np.concatenate([[0], np.cumsum(histogram)])
    last_bin = int(np.searchsorted(below, count, side="right")) - 1  # the bin in which the last drawn row lies
    room = count - int(below[last_bin])
    undecided: list[tuple[int, int]] = []
    for places, priorities in column():
        bins = (priorities >> np.uint64(48)).astype(np.int64)
        verdicts.codes[places[bins > last_bin]] = Verdict.NOT_DRAWN
        inside = bins == last_bin
        undecided += zip(priorities[inside].tolist(), places[inside].tolist(), strict=True)
    for _, place in sorted(undecided)[room:]:
        verdicts.codes[place] = Verdict.NOT_DRAWN


def _priorities(table: Table, verdicts: Verdicts, source: int, seed: int) -> Iterator[tuple[Array, Array]]:
    """(places, hashes) of the kept rows of a source, piece by piece."""
    salt = mixed(np.array([seed], dtype=np.uint64))
    for piece, index in table.index():
        if piece.source == source:
            kept = np.flatnonzero(verdicts.codes[piece.start : piece.start + piece.count] == Verdict.KEPT)
            yield kept + piece.start, mixed(index["content"][kept, 0] ^ salt)


def alternating(counts: Sequence[int]) -> Iterator[int]:
    """Which source each row comes from: every source's rows at even distances over the whole."""

    def places(source: int, count: int) -> Iterator[tuple[Fraction, int]]:
        return ((Fraction(2 * i + 1, 2 * count), source) for i in range(count))

    return (source for _, source in heapq.merge(*(places(i, count) for i, count in enumerate(counts))))
