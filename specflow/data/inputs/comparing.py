"""Equal rows, repeated ids, and rows that are also held out."""

from __future__ import annotations

from specflow.data.inputs.table import Table, groups
from specflow.data.inputs.verdicts import Verdict, Verdicts


def compare(table: Table, verdicts: Verdicts, *, drop_duplicates: bool) -> None:
    """Set aside rows equal to one of a lower place, then rows whose id an earlier kept row has.

    A row to train on that equals a held-out one is always set aside.
    """
    for group in groups(lambda: ((piece.start, index["content"]) for piece, index in table.index())):
        first = int(group[0])
        for place in group[1:].tolist():
            if first < table.heldout <= place:
                verdicts.set_aside(place, Verdict.ALSO_HELDOUT, twin=first)
            elif drop_duplicates:
                verdicts.set_aside(place, Verdict.DUPLICATE, twin=first)
    for group in groups(lambda: ((piece.start, index["id"]) for piece, index in table.index())):
        kept = [place for place in group.tolist() if verdicts.kept(place)]
        for place in kept[1:]:
            verdicts.set_aside(place, Verdict.REPEATED_ID, twin=kept[0])
