"""The command line: ``specflow``. Commands are thin; everything they do is in the packages below."""

from __future__ import annotations

from typing import Annotated

import typer

import specflow
from specflow.cli import (
    advise,
    artifacts,
    deploy,
    doctor,
    drafters,
    features,
    files,
    flows,
    history,
    import_drafter,
    inspect,
    kernels,
    lint,
    measure,
    monitor,
    serve,
    server,
    stages,
    watch,
)
from specflow.cli.group import Group

app = typer.Typer(
    name="specflow",
    cls=Group,
    help="From prompts and a target model to a drafter that makes serving faster, measured.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,  # its tables cut option names short on 80 columns
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"specflow {specflow.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


files.register(app)
doctor.register(app)
flows.register(app)
deploy.register(app)
server.register(app)
artifacts.register(app)
drafters.register(app)
history.register(app)
watch.register(app)
advise.register(app)
inspect.register(app)
features.register(app)
kernels.register(app)
import_drafter.register(app)
lint.register(app)
serve.register(app)
measure.register(app)
monitor.register(app)
stages.register(app)
