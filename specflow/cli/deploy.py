"""``deploy``, ``undeploy`` and ``deployments``: which flows a Prefect server runs, and when."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from specflow.cli.options import ConfigOption, FlowArgument, JsonOption, SetOption, StoreOption
from specflow.cli.output import console, print_json
from specflow.cli.server import HomeOption
from specflow.cli.views import plain_columns
from specflow.cli.work import bad_input, open_work
from specflow.config import resources
from specflow.config.loading import load_config
from specflow.stages.contract import StageError
from specflow.workflow.deployments import RUN, WATCH, Change, Deployment, PoolType, cron_problem, deployments_at
from specflow.workflow.local_server import DEFAULT_HOME, POOL, read_state

WATCH_SECONDS = 300.0

CronOption = Annotated[str | None, typer.Option("--cron", metavar="CRON", help="When, as five cron fields.")]
ZoneOption = Annotated[str, typer.Option("--timezone", help="Time zone of --cron.")]
IntervalOption = Annotated[float | None, typer.Option("--interval", metavar="SECONDS", min=1, help="How often.")]
DriftOption = Annotated[
    bool,
    typer.Option(
        "--on-drift", help="When a server's tau falls: `watch` is run every --interval (300 s), and starts it."
    ),
]
NameOption = Annotated[str | None, typer.Option("--name", help="Of the deployment; else the configuration's name.")]
PoolOption = Annotated[str, typer.Option("--pool", help="Work pool; made if it is not there.")]
TypeOption = Annotated[PoolType, typer.Option("--pool-type", help="Of a pool that is made.")]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")]


def deploy(
    flow: FlowArgument,
    config: ConfigOption,
    settings: SetOption = None,
    store: StoreOption = None,
    cron: CronOption = None,
    timezone: ZoneOption = "UTC",
    interval: IntervalOption = None,
    on_drift: DriftOption = False,
    name: NameOption = None,
    pool: PoolOption = POOL,
    pool_type: TypeOption = "process",
    dry_run: DryOption = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Create or update a Prefect deployment of a flow.

    The server is the one that PREFECT_API_URL names, else that of `specflow server`. Without --cron, --interval and
    --on-drift it runs when started by hand.
    """
    if cron is not None and (interval is not None or on_drift):
        raise bad_input("--cron", "a second way to say when", "one of --cron, --interval, --on-drift")
    overrides = list(settings or ()) + ([f"store={store}"] if store else [])
    # Read whole now: what could not run is not deployed.
    work = open_work(flow, config, settings=overrides)
    where: dict[str, Any] = {
        "pool": pool,
        "pool_type": pool_type,
        "directory": Path.cwd() if pool_type == "process" else None,
    }
    inputs = {"config": _reference("configs", config, pool_type), "overrides": overrides}
    name = name or work.loaded.config.name
    first = Deployment(
        flow=work.flow.name,
        name=name,
        entrypoint=RUN,
        parameters={"flow": _reference("flows", flow, pool_type), **inputs},
        schedule=None if on_drift else _schedule(cron, timezone, interval),
        description=work.flow.description,
        **where,
    )
    wanted = [first, *([_watch(first, inputs, interval, where)] if on_drift else [])]
    with _server(home) as server:
        if problem := server.pool_problem(first):
            raise bad_input("--pool-type", problem, "its type, or the name of another pool as --pool", found=pool_type)
        done = [server.compare(one) if dry_run else server.apply(one) for one in wanted]
    _show(done, dry_run=dry_run, as_json=as_json)


def _watch(target: Deployment, inputs: dict[str, Any], interval: float | None, where: dict[str, Any]) -> Deployment:
    overrides = [*inputs["overrides"], f"watch.deployment={target.full_name}"]
    return Deployment(
        flow="watch",
        name=target.name,
        entrypoint=WATCH,
        parameters={**inputs, "overrides": overrides},
        schedule={"interval": interval or WATCH_SECONDS},
        description=f"reads a server's tau, and starts {target.full_name} when it falls",
        **where,
    )


def _schedule(cron: str | None, timezone: str, interval: float | None) -> dict[str, Any] | None:
    if cron is None:
        return {"interval": interval} if interval is not None else None
    problem = cron_problem(cron, timezone)
    if problem:
        expected = "five fields, for example `0 3 * * *`, and a time zone such as Europe/Berlin"
        raise bad_input("--cron", problem, expected, found=f"{cron} ({timezone})")
    return {"cron": cron, "timezone": timezone}


def _reference(folder: resources.Folder, given: str, pool_type: PoolType) -> str:
    """A path of this machine where the run is on it; else what was given, which the image must have."""
    return str(resources.find(folder, given).absolute()) if pool_type == "process" else given


def undeploy(
    flow: Annotated[str, typer.Argument(metavar="FLOW|FLOW/NAME", help="The flow, or the deployment's whole name.")],
    config: Annotated[str | None, typer.Option("--config", "-c", help="Configuration that gives the name.")] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel runs in progress first; without it they are an error.")
    ] = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Remove a deployment and its future runs; artifacts stay."""
    if "/" not in flow and config is None:
        raise bad_input(flow, "which deployment?", "FLOW/NAME, or --config with the configuration of the deployment")
    name = flow if config is None else f"{flow}/{load_config(config).config.name}"
    with _server(home) as server:
        removed = server.remove(name, cancel=cancel)
    if as_json:
        print_json({"name": name, "removed": removed})
    else:
        console().print(f"{name}: {'removed' if removed else 'is not deployed'}", markup=False)
    if not removed:
        raise typer.Exit(1)


def deployments(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """List what is deployed: when it runs, when it last did, and how that ended."""
    with _server(home) as server:
        found = server.all()
    if as_json:
        print_json({"deployments": found})
        return
    table = plain_columns(["deployment", "when", "pool", "last run", "ended", "next run"], left=range(6))
    for one in found:
        when = _when(one["schedule"]) + (" (paused)" if one["paused"] else "")
        cells = [one["name"], when, one["pool"], one["last_start"] or "-", one["last"] or "-", one["next"] or "-"]
        table.add_row(*map(escape, map(str, cells)))
    console().print(table if found else "nothing is deployed")


def _when(schedule: dict[str, Any] | None) -> str:
    if schedule is None:
        return "by hand"
    if "interval" in schedule:
        return f"every {schedule['interval']:g} s"
    return f"cron {schedule['cron']} ({schedule['timezone']})" if "cron" in schedule else schedule["others"]


def _server(home: Path) -> Any:
    home = home.expanduser().absolute()
    url = os.environ.get("PREFECT_API_URL")
    if url is None:
        state = read_state(home)
        if state is None:
            raise StageError(
                f"no Prefect server: PREFECT_API_URL is not set and none runs in {home}; start one with "
                "`specflow server start`"
            )
        url = state.api_url
    return deployments_at(url, home)


def _show(changes: list[Change], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        done = [{"name": c.name, "change": c.what, "differences": c.lines} for c in changes]
        print_json({"dry_run": dry_run, "deployments": done})
        return
    words = {"create": "would be created", "update": "would be updated", "unchanged": "is so already"}
    if not dry_run:
        words = {"create": "created", "update": "updated", "unchanged": "is so already"}
    for change in changes:
        console().print(f"{change.name}: {words[change.what]}", markup=False)
        for line in change.lines:
            console().print(f"  {line}", markup=False, soft_wrap=True)


def register(app: typer.Typer) -> None:
    app.command()(deploy)
    app.command()(undeploy)
    app.command()(deployments)
