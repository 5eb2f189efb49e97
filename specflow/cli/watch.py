"""``watch``: poll a server, and retrain when its drafter accepts less than it was promoted with."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from specflow.cli import options
from specflow.cli.execute import show_result
from specflow.cli.output import console, print_json
from specflow.cli.work import Work, bad_input, open_work
from specflow.stages.contract import StageError
from specflow.workflow.drift import Reading, Verdict
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
            _show(verdict, as_json=as_json)
            if verdict.finding == "retrain" and not dry_run:
                _retrain(work, as_json=as_json)
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


def _show(verdict: Verdict, *, as_json: bool) -> None:
    if as_json:
        print_json({"finding": verdict.finding, "reason": verdict.reason})
    else:
        console().print(f"{verdict.finding}: {verdict.reason}", markup=False, soft_wrap=True)


def _retrain(work: Work, *, as_json: bool) -> None:
    """A deployment's run, which goes on by itself; or the flow here, on what the source has by now."""
    deployment = work.loaded.config.watch.deployment
    if deployment:
        start_deployment(deployment)
        console(stderr=True).print(f"deployment {deployment} was started", markup=False)
        return
    result = run(work.flow, work.loaded.config, work.store, locate=work.locate)
    if as_json:
        print_json(result.as_json())
    else:
        show_result(result)


def start_deployment(name: str) -> None:
    """Ask the Prefect server for a run now, without waiting for it."""
    from prefect.deployments import run_deployment

    run_deployment(name, timeout=0, as_subflow=False)


def register(app: typer.Typer) -> None:
    app.command()(watch)
