"""Equal rows, repeated ids, and rows that are also held out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specflow.data.inputs.chunk import read_asked
from specflow.data.inputs.signatures import mixed
from specflow.data.inputs.table import Array, Table, groups
from specflow.data.inputs.verdicts import Verdict, Verdicts


def compare(table: Table, verdicts: Verdicts, *, drop_duplicates: bool) -> None:
    """Set aside rows equal to one of a lower place, then rows whose id an earlier kept row of their source has.

    A row to train on that equals a held-out one is always set aside, whatever their thinking modes; within a split
    only rows of the same mode are equal. An id of two sources is no defect: the later one is marked as shared.
    """
    heldout = table.heldout
    for group in groups(lambda: ((piece.start, index["content"]) for piece, index in table.index())):
        if group[0] < heldout:
            for place in group[group >= heldout].tolist():
                verdicts.set_aside(place, Verdict.ALSO_HELDOUT, twin=int(group[0]))
    if drop_duplicates:
        for group in groups(lambda: _with_mode(table)):
            for place in group[1:].tolist():
                if verdicts.kept(place):
                    verdicts.set_aside(place, Verdict.DUPLICATE, twin=int(group[0]))
    firsts = table.first_places()
    for group in groups(lambda: ((piece.start, index["id"]) for piece, index in table.index())):
        _compare_ids(group, np.searchsorted(firsts, group, side="right"), verdicts)


def compare_asked(table: Table, verdicts: Verdicts) -> None:
    """Set aside rows to train on of which a turn is asked as one of a held-out row is (see ``asked``)."""
    counts = [len(read_asked(piece.stem, piece.count)) for piece in table.pieces]
    starts = np.cumsum([0, *counts])

    def column() -> Iterator[tuple[int, Array]]:
        for start, piece in zip(starts.tolist(), table.pieces, strict=False):
            yield start, read_asked(piece.stem, piece.count)["content"]

    first_to_train = sum(n for n, piece in zip(counts, table.pieces, strict=True) if piece.start < table.heldout)
    rows = np.concatenate(
        [np.zeros(0, np.int64), *(read_asked(p.stem, p.count)["row"].astype(np.int64) + p.start for p in table.pieces)]
    )
    for group in groups(column):
        if group[0] < first_to_train:
            twin = int(rows[group[0]])
            for place in rows[group[group >= first_to_train]].tolist():
                if verdicts.kept(place):
                    verdicts.set_aside(place, Verdict.TURN_ALSO_HELDOUT, twin=twin)


def _with_mode(table: Table) -> Iterator[tuple[int, Array]]:
    """Keys that are equal where content and thinking mode are."""
    for piece, index in table.index():
        keys = index["content"].copy()
        keys[:, 1] ^= mixed(index["thinking"].astype(np.uint64))
        yield piece.start, keys


def _compare_ids(group: Array, sources: Array, verdicts: Verdicts) -> None:
    """Rows of one id, and a number for the source of each."""
    first: dict[int, int] = {}
    for place, source in zip(group.tolist(), sources.tolist(), strict=True):
        if not verdicts.kept(place):
            continue
        if source in first:
            verdicts.set_aside(place, Verdict.REPEATED_ID, twin=first[source])
        else:
            verdicts.shared_id[place] = bool(first)
            first[source] = place
