"""``inspect``: rows of conversations and of token documents, with what is supervised in colour."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from specflow.cli import options
from specflow.cli.output import console, print_json
from specflow.cli.work import bad_input, open_store, open_work
from specflow.workflow.record import RECORD_NAME, ArtifactRecord
from specflow.workflow.store import ArtifactNotFound, ArtifactStore

if TYPE_CHECKING:
    from specflow.data.viewing import View

KINDS = ("conversations", "tokens")
SUPERVISED, SPECIAL = "green", "reverse"
OPEN, CLOSE = "«", "»"
"""Around what is supervised where there are no colours."""

Ids = Annotated[bool, typer.Option("--ids", help="Show every token alone, with its id.")]
Row = Annotated[int | None, typer.Option("--row", metavar="N", min=1, help="Only the N-th row, from 1.")]
Id = Annotated[str | None, typer.Option("--id", help="Only the row with this id.")]
Split = Annotated[str | None, typer.Option("--split", help="Only rows of this split: train or heldout.")]
Kind = Annotated[str | None, typer.Option("--kind", help="Only rows of this kind of prompt.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many rows.")]
Target = Annotated[
    Path | None, typer.Option("--target", metavar="DIR", help="Directory with the tokenizer; else the artifact's own.")
]


def inspect(
    artifact: Annotated[
        str, typer.Argument(help="`tokens` or `conversations` (with --config), a path, or the start of a key.")
    ],
    config: Annotated[str | None, options.CONFIG] = None,
    flow: options.FlowOption = options.DEFAULT_FLOW,
    settings: options.SetOption = None,
    store: options.StoreOption = None,
    row: Row = None,
    row_id: Id = None,
    split: Split = None,
    kind: Kind = None,
    limit: Limit = 3,
    target: Target = None,
    ids: Ids = False,
    as_json: options.JsonOption = False,
) -> None:
    """Show rows of conversations or tokens.

    What is supervised is coloured (or in «»), special tokens are marked.
    """
    from specflow.data.viewing import Words, load_words, views

    path, found = _locate(artifact, config=config, flow=flow, settings=settings, store=store)
    tokenizer = target or found
    words = load_words(tokenizer) if tokenizer else Words()
    try:
        rows = (view for view in views(path, words, each=ids) if _wanted(view, row, row_id, split, kind))
        shown = list(itertools.islice(rows, limit))
    except (FileNotFoundError, KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise bad_input(artifact, "no rows of conversations or tokens are here", str(path), found=problem) from error
    if not shown:
        raise bad_input(artifact, "no such row", "a row that fits --row, --id, --split and --kind", found=str(path))
    if as_json:
        print_json({"path": str(path), "rows": [view.as_json() for view in shown]})
        return
    out = console()
    for view in shown:
        print_view(out, view, ids=ids)


def print_view(out: Console, view: View, *, ids: bool) -> None:
    """A line on the row, and its text."""
    out.print(_head(view), soft_wrap=True)
    out.print(_body(view, plain=out.no_color, ids=ids), soft_wrap=True)
    out.print()


def _head(view: View) -> Text:
    line = Text.assemble((f"row {view.row}", "bold"), f"  {view.id}  {view.split}/{view.kind}")
    if view.tokens:
        share = f"{100 * (view.supervised_tokens or 0) / view.tokens:.0f} %"
        line.append(f"  {view.tokens} tokens, {view.supervised_tokens} supervised ({share})")
    line.append("".join(f"  {name} {value}" for name, value in view.notes.items()), style="dim")
    return line


def _body(view: View, *, plain: bool, ids: bool) -> Text:
    body = Text()
    inside = False
    for piece in view.pieces:
        if plain and piece.supervised != inside:
            body.append(OPEN if piece.supervised else CLOSE)
        inside = piece.supervised
        style = " ".join(name for name, on in ((SUPERVISED, inside), (SPECIAL, piece.special)) if on)
        body.append(_printable(piece.text), style=style)
        if ids and piece.ids:
            body.append(f"‹{piece.ids[0]}›", style="dim")
    if plain and inside:
        body.append(CLOSE)
    return body


def _printable(text: str) -> str:
    """A text must not be able to steer the terminal: control characters are written out."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def _wanted(view: View, row: int | None, row_id: str | None, split: str | None, kind: str | None) -> bool:
    asked: Iterable[tuple[object, object]] = (
        (row, view.row), (row_id, view.id), (split, view.split), (kind, view.kind),
    )  # fmt: skip
    return all(want is None or want == have for want, have in asked)


def _locate(
    name: str, *, config: str | None, flow: str, settings: list[str] | None, store: Path | None
) -> tuple[Path, Path | None]:
    """Where the rows are, and the directory of the target they belong to, if it is known."""
    if name in KINDS and config is not None:
        work = open_work(flow, config, settings=settings or (), store=store)
        nodes = [node for node in work.plan(verify=False).nodes if node.kind == name]
        if not nodes or nodes[0].record is None:
            made = nodes[0].node.stage if nodes else name
            raise bad_input(name, "has not been made yet", f"run `specflow {made} --config {config} --upstream` first")
        return _of_record(work.store, nodes[0].record, work.store.path(name, nodes[0].key))
    path = Path(name)
    if path.exists():
        folder = path if path.is_dir() else path.parent
        if not (folder / RECORD_NAME).exists():
            return path, None
        record = ArtifactRecord.model_validate_json((folder / RECORD_NAME).read_bytes())
        return _of_record(ArtifactStore(folder.absolute().parents[1]), record, path)
    if name in KINDS:
        raise bad_input(name, "which?", "--config FILE, a path, or the start of a key")
    known = open_store(config, store)
    try:
        found = known.resolve(name)
    except ArtifactNotFound as error:
        raise bad_input(name, str(error), "`tokens` or `conversations` with --config, a path, or a key") from error
    record_found = known.record(found.kind, found.key)
    if record_found is None or found.kind not in KINDS:
        raise bad_input(name, "this artifact has no rows to show", " or ".join(KINDS), found=found.kind)
    return _of_record(known, record_found, found.path)


def _of_record(store: ArtifactStore, record: ArtifactRecord, path: Path) -> tuple[Path, Path | None]:
    keys = record.inputs.get("target", ())
    target = store.find("target", keys[0]) if keys else None
    return path, target.path if target else None


def register(app: typer.Typer) -> None:
    app.command()(inspect)
