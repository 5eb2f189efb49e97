"""The prompts that are used and the rows that are not, read from the files of the chunks as often as asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from specflow.data.inputs.chunk import parse_row, read_bad, read_index, read_rows
from specflow.data.inputs.drawing import alternating
from specflow.data.inputs.table import Piece, Table
from specflow.data.inputs.verdicts import Verdict, Verdicts
from specflow.data.prompts import Prompt
from specflow.data.quarantine import DataError, Quarantined


@dataclass(slots=True, kw_only=True)
class SourceCounts:
    """What became of the rows of one source."""

    source: str
    split: str
    kind: str
    form: str
    revision: str | None = None
    """Commit of a dataset of the hub."""
    rows: int = 0
    kept: int = 0
    not_drawn: int = 0
    set_aside: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Prepared:
    """The result of ``prepare``. Iterating holds one row per source in memory."""

    table: Table
    verdicts: Verdicts
    order: list[int]
    """Sources as configured: those to train on, then the held-out ones. The table's are numbered otherwise."""
    prefixes: list[str]
    """Of each source of the table: what its rows' ids begin with, where they have none of their own."""
    counts: list[SourceCounts]
    """Of each source of the table."""

    @property
    def total(self) -> int:
        """Rows read, whatever became of them."""
        return sum(counts.rows for counts in self.counts)

    @property
    def kept(self) -> int:
        return sum(counts.kept for counts in self.counts)

    def rows(self) -> Iterator[Prompt]:
        """The prompts to train on, then the held-out ones; within a split as ``drawing`` says."""
        for split in ("train", "heldout"):
            sources = [source for source in self.order if self.table.splits[source] == split]
            rows = {source: self._kept(source) for source in sources}
            if not sources:
                continue
            if self.table.sources[sources[0]].weight is None:
                for source in sources:
                    yield from rows[source]
            else:
                for turn in alternating([self.counts[source].kept for source in sources]):
                    yield next(rows[sources[turn]])

    def quarantined(self) -> Iterator[Quarantined]:
        """Rows set aside, source by source as configured, in the order of their numbers."""
        for source in self.order:
            for piece in self.table.of_source(source):
                yield from sorted(self._bad(piece), key=lambda row: row.row)

    def summary(self) -> dict[str, Any]:
        """JSON values: what became of the rows of each source."""
        sources = [self.counts[source] for source in self.order]
        reasons: Counter[str] = Counter()
        for counts in sources:
            reasons.update(counts.set_aside)
        return {
            "rows": self.total,
            "kept": self.kept,
            "set_aside": dict(sorted(reasons.items())),
            "sources": [
                {name: getattr(counts, name) for name in SourceCounts.__dataclass_fields__} for counts in sources
            ],
        }

    def refuse_empty(self) -> None:
        """Raise :class:`DataError` for a split without a row, and for a source with a weight that has none to draw."""
        for source in self.order:
            counts, weight = self.counts[source], self.table.sources[source].weight
            if weight is not None and not counts.kept + counts.not_drawn:
                raise DataError(
                    f"{counts.source} ({counts.split}): the source has weight {weight:g} and no row left to draw. Of "
                    f"its {counts.rows} rows were set aside: {counts.set_aside}. Leave the source out, or see why its "
                    "rows go"
                )
        for split in ("train", "heldout"):
            found = [self.counts[source] for source in self.order if self.table.splits[source] == split]
            if found and not any(counts.kept for counts in found):
                why = "; ".join(f"{counts.source}: {counts.set_aside} of {counts.rows} rows" for counts in found)
                raise DataError(f"{split}: no row is left. Set aside by reason: {why}")

    def _kept(self, source: int) -> Iterator[Prompt]:
        for piece, place, line, number in self._lines(source):
            if self.verdicts.codes[place] == Verdict.KEPT:
                yield self._prompt(line, source, place, piece.number + number)

    def _prompt(self, line: bytes, source: int, place: int, number: int) -> Prompt:
        row, described, prefix = parse_row(line), self.table.sources[source], self.prefixes[source]
        if row.id is None:
            name = numbered(prefix, number)
        else:  # an id that an earlier source has used, too, is told apart by the source
            name = f"{prefix}:{row.id}" if self.verdicts.shared_id[place] else row.id
        return Prompt(
            id=name,
            split=self.table.splits[source],
            kind=described.kind,
            messages=row.messages,
            tools=row.tools,
            thinking=row.thinking,
            source=described.place,
            row=number,
        )

    def _lines(self, source: int) -> Iterator[tuple[Piece, int, bytes, int]]:
        for piece in self.table.of_source(source):
            numbers = read_index(piece.stem, piece.count)["number"].tolist()
            for place, (line, number) in enumerate(zip(read_rows(piece.stem), numbers, strict=False), piece.start):
                yield piece, place, line, number

    def _bad(self, piece: Piece) -> Iterator[Quarantined]:
        place = self.table.sources[piece.source].place
        for bad in read_bad(piece.stem):
            if bad.ordinal < piece.rows:
                yield Quarantined(
                    source=place, row=piece.number + bad.number, reason=bad.reason, detail=bad.detail, id=bad.id
                )
        codes = self.verdicts.codes[piece.start : piece.start + piece.count]
        if not ((codes != Verdict.KEPT) & (codes != Verdict.NOT_DRAWN)).any():
            return
        numbers = read_index(piece.stem, piece.count)["number"].tolist()
        for i, line in enumerate(islice(read_rows(piece.stem), piece.count)):
            if codes[i] in (Verdict.KEPT, Verdict.NOT_DRAWN):
                continue
            yield self._repeating(piece, i, parse_row(line).id, piece.number + numbers[i])

    def _repeating(self, piece: Piece, i: int, row_id: str | None, number: int) -> Quarantined:
        verdict = Verdict(self.verdicts.codes[piece.start + i])
        twin_source, twin_number = self.table.source_and_number(self.verdicts.twin(piece.start + i))
        twin = f"{twin_source.place.rpartition('/')[2]}:{twin_number}"
        what = {
            Verdict.ALSO_HELDOUT: f"the same messages are held out: {twin}",
            Verdict.TURN_ALSO_HELDOUT: f"one of its turns is asked as one of the held-out {twin}",
            Verdict.REPEATED_ID: f"first used at {twin}",
            Verdict.DUPLICATE: f"the same messages as {twin}",
            Verdict.NEAR_HELDOUT: f"nearly the same as the held-out {twin}",
            Verdict.NEAR_DUPLICATE: f"nearly the same as {twin}",
        }
        return Quarantined(
            source=self.table.sources[piece.source].place,
            row=number,
            reason=verdict.reason,
            detail=what[verdict],
            id=row_id or numbered(self.prefixes[piece.source], number),
        )


def numbered(prefix: str, number: int) -> str:
    """The id of a row that has none of its own."""
    return f"{prefix}/{number:05d}"
