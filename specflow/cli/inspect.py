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
from specflow.cli.locating import locate
from specflow.cli.output import console, print_json
from specflow.cli.work import bad_input

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

    found = locate(artifact, KINDS, config=config, flow=flow, settings=settings, store=store, what="rows to show")
    path, tokenizer = found.path, target or found.input_path("target")
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


def register(app: typer.Typer) -> None:
    app.command()(inspect)
