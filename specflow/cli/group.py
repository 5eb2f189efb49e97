"""Errors become messages and exit codes, in one place: 0 done, 1 failed, 2 bad input, 130 interrupted."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from specflow.cli.output import console, print_json
from specflow.config.errors import InputErrors
from specflow.stages.contract import StageError

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


class Group(TyperGroup):
    """The root group; every command runs inside ``invoke``."""

    def invoke(self, ctx: Any) -> Any:
        # Read now: the command takes its arguments out of the context.
        as_json = "--json" in [*ctx._protected_args, *ctx.args]
        try:
            return super().invoke(ctx)
        except InputErrors as errors:
            if as_json:
                print_json({"errors": [problem.as_json() for problem in errors.problems]})
            report_problems(errors)
            raise typer.Exit(BAD_INPUT) from errors
        except StageError as error:
            console(stderr=True).print(f"error: {error}", style="red", markup=False)
            raise typer.Exit(FAILED) from error
        except KeyboardInterrupt as interrupt:
            console(stderr=True).print("interrupted; finished work is kept", style="yellow")
            raise typer.Exit(INTERRUPTED) from interrupt

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order they were added, not by letter."""
        return list(self.commands)


def report_problems(errors: InputErrors) -> None:
    """Every problem, on standard error."""
    err = console(stderr=True)
    for problem in errors.problems:
        err.print(str(problem), markup=False, soft_wrap=True)
    count = len(errors.problems)
    err.print(f"{count} {'error' if count == 1 else 'errors'}; nothing was run", style="red")
