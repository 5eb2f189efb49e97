"""``plan`` and ``run``: a whole flow, or the parts of it that are asked for."""

from __future__ import annotations

from typing import Annotated

import typer

from specflow.cli.execute import execute, show_plan
from specflow.cli.options import ConfigOption, FlowArgument, JsonOption, SetOption, StoreOption
from specflow.cli.work import open_work
from specflow.config.loading import dump_config

OnlyOption = Annotated[
    list[str] | None, typer.Option("--only", metavar="STAGE", help="Only this stage or node; may be repeated.")
]
UpstreamOption = Annotated[bool, typer.Option("--upstream", help="With --only: also what is missing before it.")]
DumpOption = Annotated[bool, typer.Option("--dump-config", help="Print the whole configuration as YAML and stop.")]


def plan(
    flow: FlowArgument,
    config: ConfigOption,
    settings: SetOption = None,
    store: StoreOption = None,
    only: OnlyOption = None,
    upstream: UpstreamOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what `run` would do, why, and what it costs."""
    work = open_work(flow, config, settings=settings or (), store=store)
    show_plan(work.plan(only=only, upstream=upstream), as_json=as_json)


def run(
    flow: FlowArgument,
    config: ConfigOption,
    settings: SetOption = None,
    store: StoreOption = None,
    only: OnlyOption = None,
    upstream: UpstreamOption = False,
    dump: DumpOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a flow: make every artifact that does not exist yet."""
    work = open_work(flow, config, settings=settings or (), store=store)
    if dump:
        typer.echo(dump_config(work.loaded.config), nl=False)
        return
    execute(work, only=only, upstream=upstream, as_json=as_json)


def register(app: typer.Typer) -> None:
    app.command()(plan)
    app.command()(run)
