"""``features``: commands on captured features."""

from __future__ import annotations

import typer

from specflow.cli import features_repair

group = typer.Typer(name="features", help="Look after captured features.", no_args_is_help=True, rich_markup_mode=None)


@group.callback()
def features() -> None:
    """Look after captured features."""


features_repair.register(group)


def register(app: typer.Typer) -> None:
    app.add_typer(group)
