"""``init`` and ``schema``: the configuration as a file to write."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specflow.cli.checking import check_files
from specflow.cli.options import JsonOption
from specflow.cli.output import console, print_json
from specflow.config.errors import InputErrors, InputProblem, Location
from specflow.config.schema import config_schema
from specflow.config.starter import starter
from specflow.workflow.flow import Flow

DEFAULT_OUTPUT = Path("specflow.yaml")


def init(
    target: Annotated[str, typer.Option("--target", metavar="SOURCE", help="Directory, hub id, or random:<seed>.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write.")] = DEFAULT_OUTPUT,
    layers: Annotated[
        int | None, typer.Option("--layers", min=2, help="The target's decoder layers; read from a local directory.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a commented configuration to start from."""
    if output.exists() and not force:
        location = Location(source=str(output))
        hint = "give another --output, or --force to replace it"
        raise InputErrors([InputProblem(location=location, path="", message="the file exists", hint=hint)])
    text = starter(target, layers=layers)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    out = console()
    out.print(f"wrote {output}", markup=False)
    out.print("next: put prompts where it says, then", markup=False)
    out.print(f"  specflow plan full-pipeline --config {output}", markup=False)
    out.print(f"  specflow run full-pipeline --config {output}", markup=False)


def schema(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[SECTION | FILE...]", help="A section; with --check, YAML files.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Check configurations and flows instead.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print a JSON schema, or check YAML files.

    Of the whole configuration, of one section, of a `flow`, or of a `load-result`.
    """
    if check:
        checked = check_files(names or [])
        if as_json:
            print_json({"valid": checked})
        else:
            console().print(f"{len(checked)} valid: {', '.join(checked)}", markup=False)
        return
    if names and len(names) > 1:
        location = Location(source="specflow schema")
        problem = InputProblem(
            location=location, path="", message="more than one section", found=" ".join(names), hint="--check FILES?"
        )
        raise InputErrors([problem])
    print_json(Flow.model_json_schema() if names == ["flow"] else config_schema(names[0] if names else None))


def register(app: typer.Typer) -> None:
    app.command()(init)
    app.command()(schema)
