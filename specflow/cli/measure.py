"""``measure``: a benchmark of a server that runs already, by one command."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from specflow.cli import options
from specflow.cli.output import console, print_json
from specflow.cli.stages import parameter_of
from specflow.cli.work import bad_input
from specflow.config.document import Document
from specflow.config.errors import InputErrors, InputProblem
from specflow.config.flags import Flag, flags_of_models
from specflow.config.load import MeasureParams
from specflow.config.overrides import Override, apply_overrides, parse_overrides
from specflow.config.validation import validate
from specflow.stages.contract import StageError

Prompts = Annotated[
    list[str],
    typer.Argument(metavar="[KIND=]FILE...", help="Files with prompts; each is a data set, named by KIND or its name."),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="File for the record (JSON).")]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="File for a table of every figure.")]
COMMAND = "specflow measure"


def measure(
    prompts: list[str],
    output: Path | None,
    csv: Path | None,
    settings: list[str] | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Benchmark a running server.

    Any that speaks the OpenAI protocol. With --baseline-url, in turn with the same server without a drafter. Nothing
    says whether the drafter works as it should: `specflow load` asks for that proof first.
    """
    flags = {flag.parameter: flag for flag in FLAGS}
    given = [flags[name].override(value) for name, value in values.items() if value is not None]
    params = _params(given, settings or [])
    sources = _sources(prompts)
    from specflow.data.quarantine import DataError
    from specflow.serving.load.running import measure_running, read_asked
    from specflow.serving.load.tables import table, write_csv
    from specflow.stages.api_key import read_api_key
    from specflow.targets.retrying import ServerError

    err = console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="specflow-measure-") as folder:
        try:
            asked = read_asked(sources, Path(folder, "prompts"))
        except DataError as error:
            raise bad_input(" ".join(prompts), "no usable prompts", "see docs/data.md", found=str(error)) from error
        try:
            result = measure_running(
                params,
                asked,
                api_key=read_api_key(params.api_key_file, option="--api-key-file"),
                kept=Path(folder, "blocks.jsonl"),
                on_block=lambda block: err.print(
                    f"{block.mode}, {block.cell}: {block.tokens} tokens in {block.seconds:.1f} s", markup=False
                ),
            )
        except ServerError as error:
            raise StageError(str(error)) from error
    if output is not None:
        output.write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
    if csv is not None:
        write_csv(result, csv)
    if as_json:
        print_json(result.model_dump())
    else:
        out = console()
        out.print(table(result), markup=False, soft_wrap=True)
        for line in (*(f"{b.dataset}, {b.sampling}: {b.says}" for b in result.break_even), *result.notes):
            out.print(line, markup=False, soft_wrap=True)
    if result.error is not None:
        raise StageError(f"{result.error}\nthe figures are of what was measured before")


def _params(given: list[Override], settings: list[str]) -> MeasureParams:
    """Raises ``InputErrors`` with every problem."""
    document = Document(source=COMMAND, data={})
    apply_overrides(document, [*parse_overrides(settings), *given])
    params = validate(MeasureParams, document, context={"base": Path.cwd()})
    if params.trace is not None:
        from specflow.serving.load.arrivals import read_trace

        try:
            read_trace(params.trace)
        except ValueError as error:
            raise bad_input("--trace", str(error), 'lines {"seconds": s}') from error
    return params


def _sources(prompts: list[str]) -> list[tuple[str, Path]]:
    """Kind and file of each; raises ``InputErrors`` with all that are not there."""
    found: list[tuple[str, Path]] = []
    problems: list[InputProblem] = []
    for text in prompts:
        kind, equals, path = text.partition("=")
        place = Path(path if equals else text)
        found.append((kind if equals else place.stem, place))
        if not place.is_file():
            problems += bad_input(text, "no such file", "a file with prompts", found=str(place)).problems
    if problems:
        raise InputErrors(problems)
    return found


def _flags() -> tuple[Flag, ...]:
    return flags_of_models([MeasureParams])


FLAGS = _flags()


def register(app: typer.Typer) -> None:
    def command(**values: Any) -> None:
        measure(**values)

    keyword = inspect.Parameter.KEYWORD_ONLY
    shared = [
        inspect.Parameter("prompts", keyword, annotation=Prompts),
        inspect.Parameter("output", keyword, annotation=Output, default=None),
        inspect.Parameter("csv", keyword, annotation=Csv, default=None),
        inspect.Parameter("settings", keyword, annotation=options.SetOption, default=None),
        inspect.Parameter("as_json", keyword, annotation=options.JsonOption, default=False),
    ]
    signature = inspect.Signature([*shared, *(parameter_of(flag) for flag in FLAGS)])
    command.__signature__ = signature  # type: ignore[attr-defined]
    app.command("measure", help=inspect.getdoc(measure))(command)
