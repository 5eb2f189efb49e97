"""Nearly equal rows, by MinHash (see ``signatures``)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from specflow.data.inputs.chunk import read_bands, read_signatures
from specflow.data.inputs.signatures import PERMUTATIONS, Signatures, bands_for
from specflow.data.inputs.table import Array, Table, groups
from specflow.data.inputs.verdicts import Verdict, Verdicts

COMPARED: Final = 256
"""Rows of a large group that the others are compared with: the first ones."""
BLOCK_ROWS: Final = 4096


def compare_near(table: Table, verdicts: Verdicts, *, threshold: float) -> None:
    """Set aside rows to train on that are this similar to a row of a lower place, whatever became of that row.

    Equal rows are left out on both sides, since they are judged already. Rows are compared if they meet in a band; of
    more than ``COMPARED`` rows in one group, with the first of them. Held-out rows stay as they are.
    """
    needed = math.ceil(threshold * PERMUTATIONS - 1e-9)
    out = verdicts.codes != Verdict.KEPT
    for band in range(bands_for(threshold).number):
        for places in groups(lambda band=band: _keys(table, band)):  # type: ignore[misc]
            group = places[~out[places]]
            if len(group) > 1 and group[-1] >= table.heldout:
                _compare_group(group, table, verdicts, needed)


def _keys(table: Table, band: int) -> Iterator[tuple[int, Array]]:
    return ((piece.start, read_bands(piece.stem, band, piece.count)) for piece in table.pieces)


def _compare_group(group: Array, table: Table, verdicts: Verdicts, needed: int) -> None:
    known, modes = _signatures(table, group[:COMPARED]), table.thinking(group[:COMPARED])
    for start in range(0, len(group), BLOCK_ROWS):
        places = group[start : start + BLOCK_ROWS]
        places = places[places >= table.heldout]
        block = known[np.searchsorted(group, places)] if len(group) <= COMPARED else _signatures(table, places)
        own = table.thinking(places)
        _compare_block(group[:COMPARED], known, modes, places, block, own, table.heldout, verdicts, needed)


def _compare_block(
    firsts: Array,
    known: Signatures,
    known_modes: Array,
    places: Array,
    block: Signatures,
    modes: Array,
    heldout: int,
    verdicts: Verdicts,
    needed: int,
) -> None:
    """Compare each of ``places`` with those of ``firsts`` that stand before it, until one is similar.

    Rows to train on in another thinking mode are not compared: the same prompt is asked for in both.
    """
    open_rows = np.arange(len(places))
    for first, signature, mode in zip(firsts.tolist(), known, known_modes.tolist(), strict=True):
        open_rows = open_rows[places[open_rows] > first]
        if not len(open_rows):
            return
        similar = (block[open_rows] == signature).sum(axis=1) >= needed
        if first >= heldout:
            similar &= modes[open_rows] == mode
        for place in places[open_rows[similar]].tolist():
            if verdicts.kept(place) or first < verdicts.twin(place):
                verdict = Verdict.NEAR_HELDOUT if first < heldout else Verdict.NEAR_DUPLICATE
                verdicts.set_aside(place, verdict, twin=first)
        open_rows = open_rows[~similar]


def _signatures(table: Table, places: Array) -> Signatures:
    """``[n, PERMUTATIONS]``, read row by row from the files of the chunks; ``places`` ascend."""
    starts = np.array([piece.start for piece in table.pieces])
    owners = np.searchsorted(starts, places, side="right") - 1
    parts = [
        read_signatures(table.pieces[owner].stem, places[owners == owner] - starts[owner])
        for owner in np.unique(owners).tolist()
    ]
    return np.concatenate(parts) if parts else np.zeros((0, PERMUTATIONS), dtype=np.uint32)
