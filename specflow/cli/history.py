"""``history``: the report across runs, as one HTML file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from specflow.cli import options
from specflow.cli.output import console, print_json
from specflow.cli.work import bad_input, open_store

OptionalConfig = Annotated[str | None, options.CONFIG]
Service = Annotated[str | None, typer.Option("--service", metavar="NAME", help="Only this service; none: all.")]
Output = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="The page; none: `history.html` in the store.")
]
Title = Annotated[str, typer.Option("--title", metavar="TEXT", help="Heading of the page.")]


def history(
    config: OptionalConfig = None,
    store: options.StoreOption = None,
    service: Service = None,
    output: Output = None,
    title: Title = "Drafters over time",
    as_json: options.JsonOption = False,
) -> None:
    """Write a page about all runs: drafters over time, decisions, lineage, cost of each stage."""
    from specflow.reporting.history.page import render_history
    from specflow.workflow.chronicle import chronicle
    from specflow.workflow.promotion import RegistryError

    found = open_store(config, store)
    if not found.root.is_dir():
        raise bad_input(str(found.root), "no such artifact store", "the directory of a store, as --store DIR")
    try:
        data = chronicle(found, title=title, service=service)
    except RegistryError as error:
        raise bad_input("registry of drafters", str(error), "a registry that can be read") from error
    page = output or found.root / "history.html"
    page.write_text(render_history(data), encoding="utf-8")
    if as_json:
        print_json({"page": str(page), **asdict(data)})
    else:
        console().print(
            f"{len(data.runs)} decisions, {len(data.measurements)} measurements: {page}", markup=False, soft_wrap=True
        )


def register(app: typer.Typer) -> None:
    app.command()(history)
