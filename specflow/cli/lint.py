"""``lint``: what is wrong with a draft directory, and what each fault does at serving."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from specflow.cli import options
from specflow.cli.locating import locate
from specflow.cli.output import console, print_json
from specflow.cli.work import bad_input

if TYPE_CHECKING:
    from specflow.serving.lint import Report

KINDS = ("export",)
Draft = Annotated[
    str, typer.Argument(metavar="DRAFT", help="A draft directory, an export's, the start of its key, or `export`.")
]
Target = Annotated[
    Path | None,
    typer.Option("--target", metavar="DIR", help="The target's directory, where the draft's store does not have it."),
]


def lint(
    draft: Draft,
    target: Target = None,
    config: Annotated[str | None, options.CONFIG] = None,
    flow: options.FlowOption = options.DEFAULT_FLOW,
    settings: options.SetOption = None,
    store: options.StoreOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Check a drafter as SGLang would load it.

    Ours or a downloaded one: names, shapes, keys, ids and values, each fault with what it does at serving. Exit code 1
    where anything is wrong.
    """
    from specflow.serving.draft_directory import open_draft
    from specflow.serving.layouts.registry import ENGINES
    from specflow.serving.lint import lint as run_lint

    found = locate(draft, KINDS, config=config, flow=flow, settings=settings, store=store, what="draft to lint")
    try:
        opened = open_draft(
            found.path, target=target or found.input_path("target"), drafter=found.input_path("drafter")
        )
        report = run_lint(opened, engine=ENGINES[0])
    except (ValueError, OSError) as error:
        raise bad_input(draft, "no draft that can be checked", "config.json and tensors", found=str(error)) from error
    if as_json:
        print_json({"path": str(found.path), **report.as_json()})
    else:
        print_report(console(), report)
    if report.findings:
        raise typer.Exit(1)


def print_report(out: Console, report: Report) -> None:
    """Findings by check, with the consequence of each check; then what could not be judged."""
    from specflow.serving.consequences import consequence

    for check, findings in groupby(sorted(report.findings, key=lambda f: f.check), key=lambda f: f.check):
        for finding in findings:
            out.print(str(finding), style="red", markup=False, soft_wrap=True)
        out.print(f"  at serving: {consequence(check)}", markup=False, soft_wrap=True)
    for what in sorted(set(report.not_judged.values())):
        checks = ", ".join(name for name, needs in report.not_judged.items() if needs == what)
        out.print(f"not judged in full without {what}: {checks}", markup=False, soft_wrap=True)
    count = len(report.findings)
    said = f"{count} {'finding' if count == 1 else 'findings'}" if count else "nothing found"
    out.print(f"{report.method} for {report.engine}: {len(report.checks)} checks, {said}", markup=False)


def register(app: typer.Typer) -> None:
    app.command()(lint)
