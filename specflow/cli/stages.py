"""One command per stage, with a flag for every field of its section."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from specflow.cli import options
from specflow.cli.execute import execute
from specflow.cli.work import open_work
from specflow.config.errors import InputErrors, InputProblem, Location, listing, nearest
from specflow.config.flags import Flag, flags_of, summary_of
from specflow.config.overrides import Override
from specflow.workflow.registry import STAGE_NAMES

PER_DRAFTER = ("train", "calibrate", "export", "verify", "parity", "load", "bench")
FLOWS = {
    "vocab": "vocabulary",
    "calibrate": "calibration",
    "profile": "calibration",
    "compare": "compare-drafters",
    "parity": "check-serving",
    "load": "bench-serving",
    **dict.fromkeys(("pool", "join", "incumbent", "gate"), "retrain"),
}
"""Stages that are not in the default flow, and one that has them."""
UPSTREAM = typer.Option("--upstream", help="Also run what is missing before it; without this, that is an error.")
DRAFTER = typer.Option("--drafter", metavar="NAME", help="Only this drafter of the configuration; without it, all.")


def register(app: typer.Typer) -> None:
    for stage in STAGE_NAMES:
        app.command(stage, help=summary_of(stage))(stage_command(stage))


def stage_command(stage: str) -> Callable[..., None]:
    """A function whose signature has the shared options and one parameter per flag; Typer reads the rest from it."""
    flags = {flag.parameter: flag for flag in flags_of(stage)}
    shared = _shared(stage)
    clash = set(flags) & {parameter.name for parameter in shared}
    if clash:
        raise ValueError(f"fields of stage {stage!r} have the names of shared options: {sorted(clash)}")

    def command(**values: Any) -> None:
        given = {name: values.pop(name) for name in flags}
        run_stage(stage, {flags[name]: value for name, value in given.items() if value is not None}, **values)

    signature = inspect.Signature([*shared, *(parameter_of(flag) for flag in flags.values())])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__name__ = stage
    return command


def run_stage(
    stage: str,
    flags: dict[Flag, str | bool],
    *,
    config: str,
    settings: list[str] | None,
    store: Any,
    flow: str,
    upstream: bool,
    as_json: bool,
    drafter: str | None = None,
) -> None:
    overrides, problems = _overrides(flags, drafter)
    try:
        work = open_work(flow, config, settings=settings or (), store=store, flags=overrides)
    except InputErrors as errors:
        raise InputErrors([*problems, *errors.problems]) from errors
    if drafter and drafter not in work.loaded.config.drafters:
        problems.append(_no_such_drafter(drafter, list(work.loaded.config.drafters)))
    if problems:
        raise InputErrors(problems)
    entries = [name for name, entry in work.flow.stages.items() if entry.stage == stage]
    only = [f"{name}:{drafter}" for name in entries] if drafter else [stage]
    execute(work, only=only, upstream=upstream, as_json=as_json)


def _no_such_drafter(name: str, known: list[str]) -> InputProblem:
    return InputProblem(
        location=Location(source=f"--drafter {name}"),
        path="",
        message="no such drafter in the configuration",
        found=name,
        expected="one of " + listing(known),
        hint=nearest(name, known),
    )


def _overrides(flags: dict[Flag, str | bool], drafter: str | None) -> tuple[list[Override], list[InputProblem]]:
    overrides: list[Override] = []
    problems: list[InputProblem] = []
    for flag, value in flags.items():
        try:
            overrides.append(flag.override(value, item=drafter))
        except InputErrors as errors:
            problems += errors.problems
    return overrides, problems


def _shared(stage: str) -> list[inspect.Parameter]:
    parameters = [
        _keyword("config", Annotated[str, options.CONFIG], inspect.Parameter.empty),
        _keyword("settings", Annotated[list[str] | None, options.SET], None),
        _keyword("store", options.StoreOption, None),
        _keyword("flow", Annotated[str, options.FLOW], FLOWS.get(stage, options.DEFAULT_FLOW)),
        _keyword("upstream", Annotated[bool, UPSTREAM], False),
        _keyword("as_json", Annotated[bool, options.JSON], False),
    ]
    if stage in PER_DRAFTER:
        parameters.append(_keyword("drafter", Annotated[str | None, DRAFTER], None))
    return parameters


def parameter_of(flag: Flag) -> inspect.Parameter:
    if flag.leaf.is_flag:
        names = f"--{flag.name}/--no-{flag.name}"
        option = typer.Option(names, help=flag.help, show_default=False)
        return _keyword(flag.parameter, Annotated[bool | None, option], None)
    option = typer.Option(
        f"--{flag.name}",
        metavar=flag.leaf.type_name.upper() if not flag.leaf.choices else flag.leaf.type_name,
        help=flag.help,
        show_default=False,
        autocompletion=_completer(flag.leaf.choices),
    )
    return _keyword(flag.parameter, Annotated[str | None, option], None)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _completer(choices: tuple[str, ...]) -> Callable[[str], list[str]] | None:
    if not choices:
        return None

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete
