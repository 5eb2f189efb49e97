"""Show a plan, run it, and turn the outcome into an exit code."""

from __future__ import annotations

import sys
from collections.abc import Collection

import typer

from specflow.cli import views
from specflow.cli.group import BAD_INPUT, report_problems
from specflow.cli.output import console, print_json
from specflow.cli.work import Work
from specflow.config.errors import InputErrors
from specflow.workflow.console import make_console
from specflow.workflow.planning import Plan
from specflow.workflow.results import RunResult
from specflow.workflow.runner import run


def show_plan(plan: Plan, *, as_json: bool) -> None:
    """Print a plan; leaves with exit code 2 where something stands in its way."""
    if as_json:
        print_json(views.plan_json(plan))
    else:
        out = console()
        out.print(views.plan_tree(plan))
        out.print(views.plan_summary(plan))
    if plan.problems:
        report_problems(InputErrors(plan.problems))
        raise typer.Exit(BAD_INPUT)


def execute(work: Work, *, only: Collection[str] | None, upstream: bool, as_json: bool) -> None:
    """Run what is asked for; leaves with the result's exit code unless all of it exists."""
    # Standard output is for the JSON document alone, where one was asked for.
    progress = make_console(sys.stderr if as_json else sys.stdout)
    result = run(
        work.flow,
        work.loaded.config,
        work.store,
        locate=work.locate,
        only=only,
        upstream=upstream,
        console=progress,
    )
    if as_json:
        print_json(result.as_json())
    else:
        show_result(result)
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def show_result(result: RunResult) -> None:
    """What was measured, where the report is, and in one line how the run went."""
    out = console()
    measured = [node for node in result.nodes if node.kind == "benchmark" and node.succeeded]
    if measured:
        out.print(views.benchmark_table(measured))
    for node in result.nodes:
        for page in sorted(node.path.glob("*.html")) if node.path and node.succeeded else ():
            out.print(f"report: {page}", markup=False, soft_wrap=True)
    out.print(views.result_line(result), markup=False, soft_wrap=True)
