"""``kernels``: which implementation of an operator runs here, what the compiler makes of it, how fast it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specflow.cli import views
from specflow.cli.options import JsonOption
from specflow.cli.output import bytes_text, console, print_json
from specflow.cli.work import bad_input

if TYPE_CHECKING:
    from specflow_kernels.operator import Operator

Names = Annotated[list[str] | None, typer.Argument(metavar="[OPERATOR]...", help="Nothing: all.", show_default=False)]
Document = Annotated[
    Path | None, typer.Option("--document", metavar="FILE", help="Write the table between the marks of this file.")
]

group = typer.Typer(
    help="Triton kernels: what runs here and why, compilation for other devices, times.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@group.command()
def explain(operators: Names = None, as_json: JsonOption = False) -> None:
    """Which implementation runs on this machine, for shapes of known configurations, and why; the least cost."""
    import torch
    from specflow_kernels.operator import without_memory

    chosen = torch.device("cuda" if torch.cuda.is_available() else "meta")
    # Tensors without memory tell all that is asked, but for the device: the CPU is what they stand for.
    rows: list[dict[str, Any]] = []
    for operator in _operators(operators):
        for case in operator.cases:
            inputs = case.make(chosen)
            choice, cost = operator.explain(**inputs), operator.cost(**without_memory(case))
            reason = choice.reason.replace("tensors are on meta", "tensors are on cpu")
            rows.append(
                {
                    "operator": operator.name, "case": case.name, "runs": choice.name, "reason": reason,
                    "bytes": cost.bytes, "operations": cost.operations, "public": _public(operator),
                }
            )  # fmt: skip
    if as_json:
        print_json(rows)
        return
    table = views.plain_columns(["operator", "shapes", "runs", "why", "bytes", "operations"], left=(0, 1, 2, 3))
    for row in rows:
        table.add_row(
            row["operator"], row["case"], row["runs"], row["reason"], bytes_text(row["bytes"]),
            f"{row['operations']:.2g}",
        )  # fmt: skip
    console().print(table)
    public = {name: told for row in rows for name, told in row["public"].items()}
    for name, told in public.items():
        console().print(f"bench measures against {name}: {told}", markup=False, soft_wrap=True)


def _public(operator: Operator) -> dict[str, str]:
    """Public kernels that ``bench`` measures against, by name: what each computes, or why it cannot be."""
    return {
        name: peer.absence or f"{peer.package} {peer.version}, {peer.computes}" for name, peer in operator.peers.items()
    }


@group.command()
def compile(operators: Names = None, document: Document = None, as_json: JsonOption = False) -> None:
    """Compile ahead of time for sm_80, sm_90 and sm_100; no GPU is needed.

    Exit code 1 where a kernel spills registers or needs more shared memory than its device has.
    """
    from dataclasses import asdict

    import triton
    from specflow_kernels.compiling import compile_all, sources_digest
    from specflow_kernels.tables import compiled_table, problems_of, put_between

    results = list(compile_all(_operators(operators)))
    table = compiled_table(results, digest=sources_digest(), triton=triton.__version__)
    problems = problems_of(results)
    if document is not None:
        document.write_text(put_between(document.read_text(), table))
    if as_json:
        print_json({"kernels": [{"operator": name, **asdict(made)} for name, made in results], "problems": problems})
    else:
        console().print(table, markup=False, soft_wrap=True)
        for problem in problems:
            console().print(problem, style="red", markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(1)


@group.command()
def bench(
    operators: Names = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="JSON.")] = Path("kernels-bench.json"),
    document: Document = None,
    budget: Annotated[
        float, typer.Option("--budget", min=1.0, metavar="SECONDS", help="Begin nothing more after this time.")
    ] = 540.0,
    as_json: JsonOption = False,
) -> None:
    """Measure kernels, references, compiled references and public kernels on this machine's GPU.

    Exit code 1 on a machine without one: nothing is written.
    """
    import json

    from specflow_kernels.measuring import measure
    from specflow_kernels.tables import measured_table, put_between

    chosen = _operators(operators)
    try:
        found = measure(chosen, budget=budget)
    except RuntimeError as error:
        console(stderr=True).print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    output.write_text(json.dumps(found, indent=2) + "\n")
    table = measured_table(found)
    if document is not None:
        marks = {"begin": "<!-- times: begin -->", "end": "<!-- times: end -->"}
        document.write_text(put_between(document.read_text(), table, **marks))
    if as_json:
        print_json(found)
    else:
        console().print(table, markup=False, soft_wrap=True)


def _operators(names: list[str] | None) -> list[Operator]:
    """Raises ``InputErrors`` for a name that is none."""
    from specflow_kernels.catalogue import NAMES, load

    for name in names or ():
        if name not in NAMES:
            raise bad_input("operator", "no operator has this name", f"one of {', '.join(NAMES)}", found=name)
    return [load(name) for name in names or NAMES]


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="kernels")
