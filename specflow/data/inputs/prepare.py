"""Read every source, compare the rows, draw the mixture."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from specflow.config.inputs import InputParams, PromptSource
from specflow.data.inputs.chunk import Task, read_bad, read_index
from specflow.data.inputs.comparing import compare, compare_asked
from specflow.data.inputs.drawing import draw, shares_of
from specflow.data.inputs.forms import detect
from specflow.data.inputs.near import compare_near
from specflow.data.inputs.prepared import Prepared, SourceCounts
from specflow.data.inputs.readers import BLANK, CHUNK_BYTES, Plan, plan, resolved
from specflow.data.inputs.readers.blank import Unreadable
from specflow.data.inputs.table import Piece, Table
from specflow.data.inputs.verdicts import Verdict, Verdicts
from specflow.data.inputs.workers import Results, worker_count, working
from specflow.data.quarantine import DataError

DETECTED_ROWS = 100
"""Rows at the start of a source that are looked at for its form."""


def prepare(
    train: Sequence[PromptSource],
    heldout: Sequence[PromptSource],
    params: InputParams,
    *,
    folder: Path,
    every_turn: bool = False,
    log: Callable[[str], None] = lambda _: None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Prepared:
    """The prompts of the sources; ``folder`` is emptied, then holds the rows for as long as the result is used.

    With ``every_turn`` the target answers all turns of a row, and none of those to train on may be a held-out one.

    Raises :class:`DataError` for a source that is missing, unreadable, empty or without one usable row.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    splits = ["heldout"] * len(heldout) + ["train"] * len(train)
    table = Table([resolved(source) for source in (*heldout, *train)], splits)
    plans = [plan(source, chunk_bytes=chunk_bytes) for source in table.sources]
    forms = [_form(source, made, log) for source, made in zip(table.sources, plans, strict=True)]
    counts = [
        SourceCounts(source=s.place.rpartition("/")[2], split=split, kind=s.kind, form=form, revision=s.revision)
        for s, split, form in zip(table.sources, table.splits, forms, strict=True)
    ]
    workers = worker_count(params.workers, chunks=max(len(made.chunks) for made in plans))
    with working(workers) as results:
        for number, (source, made) in enumerate(zip(table.sources, plans, strict=True)):
            tasks = [
                Task(
                    chunk=c,
                    source=source,
                    form=forms[number],
                    params=params,
                    stem=folder / f"{number:03d}-{i:06d}",
                    every_turn=every_turn,
                )
                for i, c in enumerate(made.chunks)
            ]
            counts[number].rows = _read(table, number, tasks, results, made)
            _refuse_useless(table, number, counts[number].rows, made)
    verdicts = Verdicts(table.count)
    compare(table, verdicts, drop_duplicates=params.duplicates == "drop")
    if every_turn:
        compare_asked(table, verdicts)
    if params.near_duplicates is not None:
        compare_near(table, verdicts, threshold=params.near_duplicates)
    order = [*range(len(heldout), len(table.sources)), *range(len(heldout))]
    _draw(table, verdicts, order[: len(train)], params, rows=params.rows, log=log)
    _draw(table, verdicts, order[len(train) :], params, rows=None, log=log)
    for number, count in enumerate(counts):
        _count(table, verdicts, number, count)
    return Prepared(table=table, verdicts=verdicts, order=order, prefixes=_prefixes(table, order), counts=counts)


def _form(source: PromptSource, made: Plan, log: Callable[[str], None]) -> str:
    """The declared form, or that of the first rows; ``messages`` where they have none, so that every row says why."""
    if source.form != "auto":
        return source.form
    values = (value for chunk in made.chunks for _, value in chunk.rows() if value is not BLANK)
    try:
        form = detect(islice(values, DETECTED_ROWS), source)
    except Unreadable:
        form = None  # said again, with its place, when the source is read
    if form is not None and form != "messages":
        log(f"{source.place.rpartition('/')[2]}: rows of the form {form}, by their keys")
    return form or "messages"


def _read(table: Table, number: int, tasks: Sequence[Task], results: Results, made: Plan) -> int:
    """Add a source's pieces to the table; its rows, usable or not. Raises at a row that cannot be read."""
    source, rows, before = table.sources[number], 0, 0
    for task, report in zip(tasks, results(tasks), strict=False):
        room = report.rows if source.limit is None else min(report.rows, source.limit - rows)
        if report.unreadable is not None and (source.limit is None or report.rows < source.limit - rows):
            number_there, message = report.unreadable
            place = f"{source.place}:" if made.in_lines else f"{source.place}: row "
            raise DataError(f"{place}{before + number_there}: {message}")
        used = read_index(task.stem, report.usable)["ordinal"] < room
        table.pieces.append(
            Piece(stem=task.stem, source=number, start=table.count, count=int(used.sum()), rows=room, number=before)
        )
        rows, before = rows + room, before + report.numbers
        if rows == source.limit:
            break
    return rows


def _refuse_useless(table: Table, number: int, rows: int, made: Plan) -> None:
    """Raise for a source that has no usable row."""
    source, pieces = table.sources[number], table.of_source(number)
    if not rows:
        raise DataError(f"{source.place}: the file is empty; expected rows like one of docs/data.md")
    if any(piece.count for piece in pieces):
        return
    first, number = next((bad, piece.number + bad.number) for piece in pieces for bad in read_bad(piece.stem))
    line = "line" if made.in_lines else "row"
    raise DataError(
        f"{source.place}: none of {rows} rows is a usable prompt; the first bad one is {line} {number}: "
        f"{first.reason}{f' ({first.detail})' if first.detail else ''}. Expected "
        '{"messages": [{"role": "user", "content": "..."}]}, or another form of docs/data.md'
    )


def _draw(
    table: Table,
    verdicts: Verdicts,
    sources: Sequence[int],
    params: InputParams,
    *,
    rows: int | None,
    log: Callable[[str], None],
) -> None:
    available = [_kept(table, verdicts, source) for source in sources]
    given = [table.sources[source].weight for source in sources]
    weights = [weight for weight in given if weight is not None]
    counts = shares_of(available, weights or None, rows)
    for source, count in zip(sources, counts, strict=True):
        draw(table, verdicts, source, count=count, seed=params.seed)
    if rows is not None and sum(counts) < rows:
        log(f"the mixture has {sum(counts)} rows instead of {rows}: its sources hold no more without repeating one")


def _kept(table: Table, verdicts: Verdicts, source: int) -> int:
    pieces = table.of_source(source)
    return sum(int((verdicts.codes[p.start : p.start + p.count] == Verdict.KEPT).sum()) for p in pieces)


def _count(table: Table, verdicts: Verdicts, source: int, counts: SourceCounts) -> None:
    found: Counter[str] = Counter()
    for piece in table.of_source(source):
        found.update(bad.reason for bad in read_bad(piece.stem) if bad.ordinal < piece.rows)
        found.update(verdicts.reasons(piece.start, piece.count))
    counts.set_aside = dict(sorted(found.items()))
    counts.kept = _kept(table, verdicts, source)
    counts.not_drawn = counts.rows - counts.kept - found.total()


def _prefixes(table: Table, order: Sequence[int]) -> list[str]:
    """``split/kind/file``, with a number where two sources would have the same."""
    seen: Counter[str] = Counter()
    made = [""] * len(order)
    for source in order:
        described = table.sources[source]
        prefix = f"{table.splits[source]}/{described.kind}/{described.stem}"
        seen[prefix] += 1
        made[source] = prefix if seen[prefix] == 1 else f"{prefix}-{seen[prefix]}"
    return made
