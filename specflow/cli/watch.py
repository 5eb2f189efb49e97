"""``watch``: poll a server, and retrain when its drafter accepts less than it was promoted with."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from specflow.cli import options
from specflow.cli.execute import show_result
from specflow.cli.output import console, print_json
from specflow.cli.work import Work, bad_input, open_work
from specflow.stages.contract import StageError
from specflow.workflow.console import make_console
from specflow.workflow.drift import Reading, Verdict
from specflow.workflow.results import RunResult
from specflow.workflow.runner import run
from specflow.workflow.watching import NothingToCompare, poll

Once = Annotated[bool, typer.Option("--once", help="Read once and stop; the state is kept for the next time.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Retrain nothing, only say what would be.")]


def watch(
    config: options.ConfigOption,
    settings: options.SetOption = None,
    store: options.StoreOption = None,
    once: Once = False,
    dry_run: DryRun = False,
    as_json: options.JsonOption = False,
) -> None:
    """Retrain when a server's tau falls.

    The section `watch` says which server, how far tau must fall, for how long, and how often a retraining may be
    started. The state between readings is in the store, so that `--once` may be called by a timer.
    """
    work = open_work(_flow(config, settings), config, settings=settings or (), store=store)
    url = work.loaded.config.watch.url
    if url is None:
        raise bad_input("watch.url", "no server to watch", "its address, as http://127.0.0.1:30000")
    while True:
        verdict = _polled(work, url, once=once)
        if verdict:
            fires = verdict.finding == "retrain" and not dry_run
            _show(verdict, _retrain(work, verdict, as_json=as_json) if fires else None, as_json=as_json, once=once)
        if once:
            return
        time.sleep(work.loaded.config.watch.interval)


def _flow(config: str, settings: list[str] | None) -> str:
    from specflow.config.loading import load_config
    from specflow.config.overrides import parse_overrides

    return load_config(config, parse_overrides(settings or ())).config.watch.flow


def _polled(work: Work, url: str, *, once: bool) -> Verdict | None:
    """None where the server did not answer and is asked again."""
    from specflow.targets.retrying import ServerError

    try:
        return poll(work.loaded.config, work.store, lambda earlier: read_server(url, earlier))
    except NothingToCompare as error:
        raise bad_input("watch", str(error), "a tau to compare with") from error
    except ServerError as error:
        if once:
            raise StageError(f"watch: {error}") from error
        console(stderr=True).print(f"watch: {error}; asked again", markup=False, soft_wrap=True)
        return None


def read_server(url: str, earlier: Mapping[str, Any] | None) -> Reading:
    """A reading since an earlier one."""
    from specflow.serving.monitor import Reading as Monitored
    from specflow.serving.monitor import read

    return read(url, since=Monitored.from_json(earlier) if earlier else None)


def _show(verdict: Verdict, result: RunResult | None, *, as_json: bool, once: bool) -> None:
    """One JSON document, or a line and what was measured; leaves where the retraining failed and none follows."""
    if as_json:
        run_json = result.as_json() if result else None
        print_json({"finding": verdict.finding, "reason": verdict.reason, "run": run_json})
    else:
        console().print(_line(verdict), markup=False, soft_wrap=True)
        if result:
            show_result(result)
    if result and result.exit_code and (once or result.interrupted):
        raise typer.Exit(result.exit_code)


def _line(verdict: Verdict) -> str:
    return f"{verdict.finding}: {verdict.reason}"


def _retrain(work: Work, verdict: Verdict, *, as_json: bool) -> RunResult | None:
    """The flow here, on what the source has by now; or a run of the deployment, which goes on by itself."""
    deployment = work.loaded.config.watch.deployment
    console(stderr=True).print(_line(verdict), markup=False, soft_wrap=True)
    if deployment:
        start_deployment(deployment)
        console(stderr=True).print(f"deployment {deployment} was started", markup=False)
        return None
    progress = make_console(sys.stderr if as_json else sys.stdout)
    return run(work.flow, work.loaded.config, work.store, locate=work.locate, console=progress)


def start_deployment(name: str) -> None:
    """Ask the Prefect server for a run now, without waiting for it."""
    from prefect.deployments import run_deployment

    run_deployment(name, timeout=0, as_subflow=False)


def register(app: typer.Typer) -> None:
    app.command()(watch)
