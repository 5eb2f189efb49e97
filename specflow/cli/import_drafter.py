"""``import``: a public drafter's directory becomes a drafter of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specflow.cli import options
from specflow.cli.locating import locate
from specflow.cli.output import console, print_json
from specflow.cli.work import bad_input
from specflow.config.errors import InputErrors, InputProblem, Location
from specflow.stages.contract import Artifact

KINDS = ("target",)
Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="A drafter as SGLang loads it: config.json and safetensors.")
]
Target = Annotated[
    str,
    typer.Option(
        "--target", metavar="TARGET", help="The target it drafts for: the start of its key, or `target` with --config."
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="Name of the drafter; without it, the directory's.")]


def import_drafter(
    directory: Directory,
    target: Target = "target",
    name: Name = None,
    config: Annotated[str | None, options.CONFIG] = None,
    flow: options.FlowOption = options.DEFAULT_FLOW,
    settings: options.SetOption = None,
    store: options.StoreOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Take in a public drafter.

    EAGLE-3, DFlash, DFlash 2 and DSpark, linted first; whatever is not understood is refused by name. The artifact is
    a drafter for `train.init_from`.
    """
    from specflow.serving.importing import NotUnderstood
    from specflow.workflow.importing import import_drafter as take_in

    found = locate(target, KINDS, config=config, flow=flow, settings=settings, store=store, what="target")
    if found.record is None or found.store is None or found.record.kind != "target":
        raise bad_input(target, "no target of a store", "the key of a target, or `target` with --config")
    place = Artifact(kind="target", key=found.record.key, path=found.path)
    err = console(stderr=True)
    try:
        made = take_in(
            found.store,
            place,
            directory,
            name=name or directory.resolve().name,
            log=lambda line: err.print(line, markup=False, soft_wrap=True),
        )
    except NotUnderstood as error:
        raise InputErrors([_problem(directory, problem) for problem in error.problems]) from error
    except (ValueError, OSError) as error:
        expected = "config.json and safetensors files of a drafter"
        raise bad_input(str(directory), "no drafter that can be taken in", expected, found=str(error)) from error
    if as_json:
        print_json({"kind": made.kind, "key": made.key, "path": str(made.path), **made.metrics})
        return
    console().print(f"drafter/{made.key} ({made.path})", markup=False, soft_wrap=True)
    err.print(f"start from it: --set drafters.NAME.train.init_from={made.key[:12]}", markup=False, soft_wrap=True)


def _problem(directory: Path, problem: str) -> InputProblem:
    return InputProblem(location=Location(source=str(directory)), path="", message=problem)


def register(app: typer.Typer) -> None:
    app.command("import")(import_drafter)
