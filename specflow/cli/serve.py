"""``serve``: a draft behind a real SGLang server, from the manifest to effective settings, in the foreground."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specflow.cli import options
from specflow.cli.lint import print_report
from specflow.cli.locating import locate
from specflow.cli.output import console
from specflow.cli.urls import server_root
from specflow.cli.work import bad_input
from specflow.stages.contract import StageError

if TYPE_CHECKING:
    from specflow.serving.serving import Serving
    from specflow.targets.sglang.process import SglangProcess

KINDS = ("export",)
POLL_SECONDS = 0.3
Draft = Annotated[
    str, typer.Argument(metavar="DRAFT", help="A draft directory, an export's, the start of its key, or `export`.")
]
Flags = Annotated[
    list[str] | None, typer.Argument(metavar="[-- FLAG...]", help="Further flags of sglang.launch_server, behind `--`.")
]
Target = Annotated[
    Path | None,
    typer.Option("--target", metavar="DIR", help="The target's directory, where the draft's store does not have it."),
]
Python = Annotated[
    Path | None, typer.Option("--python", metavar="FILE", help="Python of an environment with SGLang 0.5.23.")
]
Host = Annotated[str, typer.Option("--host", help="Address to listen on.")]
Port = Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")]
Dtype = Annotated[str | None, typer.Option("--dtype", help="Dtype of the server; none: the draft's.")]
Mode = Annotated[
    str,
    typer.Option(
        "--mode",
        metavar="static|cap-accept|compact",
        help="How much of a block counts: all, what would pay to verify, or only that is verified (DSpark).",
    ),
]
Variables = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="Variable of the server; may be repeated.")
]
Log = Annotated[Path | None, typer.Option("--log", metavar="FILE", help="File for the server's log.")]
StartTimeout = Annotated[
    float, typer.Option("--start-timeout", metavar="SECONDS", min=0.1, help="Seconds that it may take to start.")
]
Print = Annotated[bool, typer.Option("--print", help="Only print the command.")]
NoLint = Annotated[bool, typer.Option("--no-lint", help="Start it whatever the linter finds.")]
Url = Annotated[
    str | None, typer.Option("--url", help="Start nothing: compare the settings of a server that runs already.")
]


def serve(
    draft: Draft,
    flags: Flags = None,
    target: Target = None,
    python: Python = None,
    host: Host = "127.0.0.1",
    port: Port = 30000,
    dtype: Dtype = None,
    mode: Mode = "static",
    env: Variables = None,
    log: Log = None,
    start_timeout: StartTimeout = 1200.0,
    print_only: Print = False,
    no_lint: NoLint = False,
    url: Url = None,
    config: Annotated[str | None, options.CONFIG] = None,
    flow: options.FlowOption = options.DEFAULT_FLOW,
    settings: options.SetOption = None,
    store: options.StoreOption = None,
) -> None:
    """Serve a drafter with SGLang.

    The command line comes from the manifest. The server runs until Ctrl-C, its log is shown, and what it really runs
    with is compared with the manifest first.
    """
    from specflow.serving.launch import launch_command
    from specflow.serving.serving import plan_serving

    found = locate(draft, KINDS, config=config, flow=flow, settings=settings, store=store, what="draft to serve")
    place = target or found.input_path("target")
    if place is None:
        raise bad_input("--target", "which target?", "the directory of the model that the drafter was trained for")
    try:
        serving = plan_serving(
            found.path, place, dtype=dtype, further=tuple(flags or ()), mode=mode, environment=_variables(env or ())
        )
    except (ValueError, OSError) as error:
        raise bad_input(
            draft, "cannot be served", "a draft of ours, or of a known architecture", found=str(error)
        ) from error
    address = {"--host": host, "--port": str(port)}
    if print_only:
        command = launch_command({**serving.flags, **address}, environment=serving.environment)
        typer.echo(" ".join([command, *serving.further]))
        return
    for note in serving.notes:
        console(stderr=True).print(note, style="yellow", markup=False, soft_wrap=True)
    if not no_lint:
        _lint(found.path, place, found.input_path("drafter"))
    if url is not None:
        show_settings(serving, server_root(url, "--url"))
        return
    if python is None:
        raise bad_input("--python", "no environment with SGLang", "the python of one, as /opt/sglang/bin/python")
    with tempfile.TemporaryDirectory(prefix="specflow-serve-") as folder, _ended_by_sigterm():
        _run(serving, python, log=log or Path(folder) / "sglang.log", host=host, port=port, timeout=start_timeout)


def _variables(given: Sequence[str]) -> dict[str, str]:
    """Raises ``InputErrors`` for words that are none."""
    pairs = [word.partition("=") for word in given]
    if wrong := [word for word, (name, sign, _) in zip(given, pairs, strict=True) if not (name and sign)]:
        raise bad_input("--env", "no variable", "NAME=VALUE", found=", ".join(wrong))
    return {name: value for name, _, value in pairs}


def _lint(draft: Path, target: Path, drafter: Path | None) -> None:
    """Leaves with exit code 1 where the linter finds something."""
    from specflow.serving.draft_directory import open_draft
    from specflow.serving.layouts.registry import ENGINES
    from specflow.serving.lint import lint

    try:
        report = lint(open_draft(draft, target=target, drafter=drafter), engine=ENGINES[0])
    except (ValueError, OSError) as error:
        raise bad_input(
            str(draft), "no draft that can be checked", "config.json and tensors", found=str(error)
        ) from error
    if report.findings:
        print_report(console(stderr=True), report)
        raise StageError("not started, because of what the linter found; --no-lint starts it all the same")


def _run(serving: Serving, python: Path, *, log: Path, host: str, port: int, timeout: float) -> None:
    """In the foreground until it ends or is interrupted. Raises ``StageError`` where it ends by itself."""
    from specflow.serving.log_tail import LogTail
    from specflow.targets.retrying import ServerError
    from specflow.targets.sglang.process import SglangProcess

    tail, err = LogTail(log), console(stderr=True)

    def follow() -> None:
        for line in tail.new_lines():
            err.print(line, style="dim", markup=False, soft_wrap=True)

    arguments = serving.arguments
    process = SglangProcess(
        python.absolute(),
        arguments,
        log=log,
        start_timeout=timeout,
        host=host,
        port=port,
        on_wait=follow,
        environment=serving.environment,
    )
    try:
        with process:
            follow()
            show_settings(serving, process.url)
            console().print(f"ready at {process.url}; Ctrl-C ends it", markup=False)
            _wait(process, follow)
    except ServerError as error:
        raise StageError(str(error)) from error
    finally:
        follow()


def _wait(process: SglangProcess, follow: Any) -> None:
    """Until it ends, which is a failure: nobody asked it to."""
    while (said := process.died()) is None:
        follow()
        time.sleep(POLL_SECONDS)
    raise StageError(said)


def show_settings(serving: Serving, url: str) -> None:
    """What the server says it runs with; raises ``StageError`` where that is not what the manifest asks for."""
    from specflow.serving.serving import read_settings
    from specflow.serving.settings import differing
    from specflow.targets.retrying import ServerError

    try:
        settings = read_settings(serving, url)
    except ServerError as error:
        raise StageError(str(error)) from error
    out = console()
    for setting in settings:
        out.print(f"{setting.name}: {setting.found}", markup=False, soft_wrap=True)
    if wrong := differing(settings):
        listed = "".join(f"\n  {setting}" for setting in wrong)
        raise StageError(f"the server at {url} does not run as the manifest asks:{listed}")


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """``kill`` ends the command as Ctrl-C does: with the server."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def register(app: typer.Typer) -> None:
    app.command()(serve)
