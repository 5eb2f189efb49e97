"""``monitor``: what a production server's drafter accepts, against what it was measured to accept."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specflow.cli import options
from specflow.cli.locating import locate
from specflow.cli.output import console, print_json, print_json_line
from specflow.cli.urls import server_root
from specflow.cli.work import bad_input
from specflow.stages.api_key import read_api_key
from specflow.stages.contract import StageError

if TYPE_CHECKING:
    from specflow.serving.acceptance_record import AcceptanceRecord
    from specflow.serving.monitor import Drift, Reading

ALARM, UNKNOWN = 3, 4
"""Exit codes: the drafter accepts less than it was measured to; too little was decoded to tell."""
KINDS = ("benchmark",)
Url = Annotated[str, typer.Argument(metavar="URL", help="Address of the server, for example http://127.0.0.1:30000.")]
Record = Annotated[
    str | None,
    typer.Option(
        "--record",
        metavar="BENCHMARK",
        help="What the drafter was measured to accept: a benchmark's directory, the start of its key, or `benchmark` "
        "with --config. Without it nothing is judged.",
    ),
]
Kind = Annotated[str | None, typer.Option("--kind", help="Prompts of the benchmark to compare with; without it, all.")]
Margin = Annotated[
    float, typer.Option("--margin", min=0.0, max=1.0, help="Share of tau that may be lost without an alarm.")
]
Least = Annotated[int, typer.Option("--least-rounds", min=1, help="Rounds in the window, below which nothing is said.")]
Window = Annotated[
    float | None,
    typer.Option(
        "--window", metavar="SECONDS", min=0.1, help="Look again after so long; without it, since the server's start."
    ),
]
Since = Annotated[
    Path | None,
    typer.Option(
        "--since",
        metavar="FILE",
        help="The window began with the reading in this file, which is then replaced by the new one: for a timer.",
    ),
]
Watch = Annotated[
    bool,
    typer.Option("--watch", help="Window after window, until an alarm or Ctrl-C; a server that is away is awaited."),
]
KeyFile = Annotated[
    Path | None,
    typer.Option("--api-key-file", metavar="FILE", help="File with the key; it is sent to the server only."),
]
WATCHED_SECONDS = 60.0


def monitor(
    url: Url,
    record: Record = None,
    kind: Kind = None,
    margin: Margin = 0.1,
    least_rounds: Least = 200,
    window: Window = None,
    since: Since = None,
    watch: Watch = False,
    api_key_file: KeyFile = None,
    config: Annotated[str | None, options.CONFIG] = None,
    flow: options.FlowOption = options.DEFAULT_FLOW,
    settings: options.SetOption = None,
    store: options.StoreOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Say what a server's drafter accepts.

    Reads /metrics (start SGLang with --enable-metrics). Exit code 3: it accepts less than it was measured to; 4: too
    little was decoded to tell.
    """
    from specflow.serving.monitor import State, drift

    if since is not None and (watch or window is not None):
        raise bad_input("--since", "with --window or --watch", "one of them: the file says when the window began")
    known = None
    if record is not None:
        place = locate(record, KINDS, config=config, flow=flow, settings=settings, store=store, what="figures").path
        known = _record(place, kind)
    elif kind is not None:
        raise bad_input("--kind", "without --record", "a benchmark whose prompts have kinds")
    key = read_api_key(api_key_file, option="--api-key-file")
    judged: Drift | None = None
    for reading in _readings(server_root(url, "URL"), key, window=window, since=since, watch=watch):
        judged = drift(reading, known, margin, least_rounds=least_rounds) if known else None
        _show(reading, judged, as_json=as_json, lines=watch)
        if judged is not None and judged.alarm:
            raise typer.Exit(ALARM)
    if judged is not None and judged.state is State.UNKNOWN:
        raise typer.Exit(UNKNOWN)


def _record(place: Path, kind: str | None) -> AcceptanceRecord:
    from specflow.serving.acceptance_record import acceptance_record

    try:
        return acceptance_record(place, kind=kind)
    except ValueError as error:
        raise bad_input("--record", "no record of a drafter", "a benchmark", found=str(error)) from error


def _readings(url: str, key: str | None, *, window: float | None, since: Path | None, watch: bool) -> Iterator[Reading]:
    """One reading, or one after every window. Raises ``StageError`` where nothing answers, unless it is watched."""
    from specflow.serving.monitor import read
    from specflow.targets.retrying import ServerError

    last = _kept(since)
    first = watch or window is not None
    while True:
        try:
            reading = read(url, since=last, api_key=key)
        except ServerError as error:
            if not watch:
                raise StageError(str(error)) from error
            console(stderr=True).print(f"{error}; asked again in {window or WATCHED_SECONDS:g} s", markup=False)
        else:
            if since is not None:
                _keep(since, reading)
            if not first:
                yield reading
                if not watch:
                    return
            first, last = False, reading
        time.sleep(window or WATCHED_SECONDS)


def _kept(path: Path | None) -> Reading | None:
    from specflow.serving.monitor import Reading

    if path is None or not path.exists():
        return None
    try:
        return Reading.from_json(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise bad_input(str(path), "no earlier reading", "a file of --since, or none yet", found=str(error)) from error


def _keep(path: Path, reading: Reading) -> None:
    """Whole or not at all: a timer may be stopped at any moment."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(reading.as_json()) + "\n", encoding="utf-8")
    partial.replace(path)


def _show(reading: Reading, judged: Drift | None, *, as_json: bool, lines: bool) -> None:
    if as_json:
        whole = {**reading.as_json(), "drift": judged and judged.as_json()}
        (print_json_line if lines else print_json)(whole)
        return
    out = console()
    out.print(_sentence(reading), markup=False, soft_wrap=True)
    if judged is not None:
        out.print(f"{judged.state.value}: {judged.reason}", style="red" if judged.alarm else "", markup=False)


def _sentence(reading: Reading) -> str:
    tau = "-" if reading.tau is None else f"{reading.tau:.3f}"
    if reading.window is None:
        return f"tau {tau} by the server's own mean since its start (no /metrics: start it with --enable-metrics)"
    window = reading.window
    span = "since the server's start" if reading.seconds is None else f"in {reading.seconds:.0f} s"
    parts = [f"tau {tau}", f"{window.rounds:.0f} rounds of {window.requests:.0f} requests {span}"]
    rates = {name: reading.per_second(name) for name in ("tokens", "requests")}
    parts += [f"{rate:.4g} {name}/s" for name, rate in rates.items() if rate is not None]
    parts += [f"{reading.gauges[name]:.0f} {name}" for name in ("running", "queued") if name in reading.gauges]
    return ", ".join(parts) + ("; the server was started again meanwhile" if reading.restarted else "")


def register(app: typer.Typer) -> None:
    app.command()(monitor)
