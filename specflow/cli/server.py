"""``server``: a Prefect server and worker of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specflow.cli.options import JsonOption
from specflow.cli.output import console, print_json
from specflow.stages.contract import StageError
from specflow.workflow import local_server
from specflow.workflow.local_server import DEFAULT_HOME, ServerState
from specflow.workflow.server import ServerError

HomeOption = Annotated[
    Path,
    typer.Option("--home", metavar="DIR", help="Directory of the server's database and logs, and of nothing else."),
]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of UI and API; 0 is any free one.")]

server = typer.Typer(help="A local Prefect server and worker, for those who have none.", no_args_is_help=True)


def start(home: HomeOption = DEFAULT_HOME, port: PortOption = 4200, as_json: JsonOption = False) -> None:
    """Start server and worker, in the background, unless they run already."""
    home = home.expanduser().absolute()
    state = local_server.read_state(home)
    if state is None:
        try:
            state = local_server.start(home, port=port)
        except ServerError as error:
            raise StageError(str(error)) from error
    _show(state, home, as_json=as_json)


def stop(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Stop both, and the runs in them; deployments stay for the next start."""
    stopped = local_server.stop(home.expanduser().absolute())
    if as_json:
        print_json({"stopped": stopped})
    else:
        console().print("stopped" if stopped else f"no server runs in {home}", markup=False)


def status(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Show what runs; exit code 1 unless server and worker do."""
    home = home.expanduser().absolute()
    state = local_server.read_state(home)
    if state is not None:
        if not _show(state, home, as_json=as_json):
            raise typer.Exit(1)
        return
    if as_json:
        print_json({"running": False, "home": str(home)})
    else:
        console().print(f"no server runs in {home}; start one with `specflow server start`", markup=False)
    raise typer.Exit(1)


def _show(state: ServerState, home: Path, *, as_json: bool) -> bool:
    """Whether both answer."""
    answers, workers = local_server.healthy(state), local_server.workers(state)
    found: dict[str, Any] = {
        "running": answers and bool(workers),
        "ui": state.ui_url,
        "api": state.api_url,
        "home": str(home),
        "pool": state.pool,
        "server": "answers" if answers else "does not answer",
        "workers": [worker["name"] for worker in workers],
        "pid": state.pid,
        "children": state.children,
    }
    if as_json:
        print_json(found)
    else:
        out = console()
        out.print(f"Prefect UI: {state.ui_url}", markup=False)
        out.print(f"server {found['server']}; {len(workers)} worker for pool {state.pool}; home {home}", markup=False)
        out.print(f"for `specflow run` to report there: export PREFECT_API_URL={state.api_url}", markup=False)
    return bool(found["running"])


server.command()(start)
server.command()(stop)
server.command()(status)


def register(app: typer.Typer) -> None:
    app.add_typer(server, name="server")
