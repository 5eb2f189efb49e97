"""``doctor``: whether this machine can run specflow, and what to do where it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specflow.cli.options import JsonOption
from specflow.cli.output import console, print_json
from specflow.cli.probes import examine
from specflow.config.root import Config

STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
DEFAULT_STORE: Path = Config.model_fields["store"].default


def doctor(
    store: Annotated[Path, typer.Option("--store", metavar="DIR", help="Artifact store to look at.")] = DEFAULT_STORE,
    sglang_python: Annotated[
        Path | None, typer.Option("--sglang-python", metavar="FILE", help="Python of SGLang's own environment.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check this machine, and say what to do.

    Python, libraries, processor, memory, disk, Prefect and, if given, SGLang. Exit code 1 if something fails.
    """
    findings = examine(store, sglang_python=sglang_python)
    failed = sum(finding.level == "fail" for finding in findings)
    if as_json:
        print_json({"ok": not failed, "checks": [finding.as_json() for finding in findings]})
    else:
        out = console()
        for finding in findings:
            out.print(f"[{STYLES[finding.level]}]{finding.level:<5}[/]", end="")
            out.print(f"{finding.name:<14}{finding.found}", markup=False, soft_wrap=True)
            if finding.todo:
                out.print(f"     {'':<14}-> {finding.todo}", markup=False, soft_wrap=True)
        out.print(f"{failed} failed" if failed else "ready", style="red" if failed else "green")
    if failed:
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    app.command()(doctor)
