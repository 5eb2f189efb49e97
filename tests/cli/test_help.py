"""Names of commands and options are an interface: they change only on purpose. Start-up is quick."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from specflow.cli.main import app
from specflow.config.fields import Leaf
from specflow.config.flags import flags_of
from specflow.workflow.registry import STAGE_NAMES
from tests.cli.support import specflow

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("options.txt")
HEAVY = ("torch", "transformers", "datasets", "zarr", "prefect", "plotly", "matplotlib", "pandas", "scipy")


def options() -> str:
    """Every command with its arguments and options, one a line."""
    return "\n".join(_lines(typer.main.get_command(app), "")) + "\n"


def _lines(parent: Any, prefix: str) -> Iterator[str]:
    for name, command in parent.commands.items():
        if hasattr(command, "commands"):
            yield from _lines(command, f"{prefix}{name} ")
            continue
        yield f"{prefix}{name}"
        for parameter in command.params:
            names = "/".join([*parameter.opts, *parameter.secondary_opts])
            yield f"  {names}{' (required)' if parameter.required else ''}"


def test_option_names_are_frozen() -> None:
    hint = f"if this is meant: {Path(sys.executable).name} -m tests.cli.test_help"
    assert options() == GOLDEN.read_text(), hint


def test_every_stage_has_a_command_with_a_flag_per_field() -> None:
    listed = options().split("\n")
    assert [line for line in listed if line in STAGE_NAMES] == list(STAGE_NAMES)
    assert {
        "  --steps",
        "  --layer-ids",
        "  --max-new-tokens",
        "  --compare-transformers/--no-compare-transformers",
    } < set(listed)


def test_help_is_the_field_description_with_default_and_key() -> None:
    flags = {flag.name: flag for flag in flags_of("train")}
    steps = flags["steps"]
    assert isinstance(steps.leaf, Leaf)
    assert steps.help == "Optimiser steps. (default 1000; drafters.*.train.steps)"
    shown = " ".join(specflow("train", "--help").stdout.split())
    assert "--steps INT Optimiser steps. (default 1000; drafters.*.train.steps)" in shown


@pytest.mark.parametrize("stage", STAGE_NAMES)
def test_summaries_are_not_cut_short_on_80_columns(stage: str) -> None:
    line = next(line for line in specflow("--help").stdout.split("\n") if line.strip().startswith(stage + " "))
    assert not line.endswith("...")
    assert len(line) <= 80


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["train", "--help"], ["schema", "bench"], ["status", "--store", "nowhere"], ["run", "x", "-c", "y"]],
)
def test_nothing_heavy_is_imported_to_answer_quickly(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom specflow.cli.main import app\n"
        "try:\n    app(sys.argv[1:], prog_name='specflow')\n"
        f"finally:\n    print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)"
    )
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=_environment(), check=False)
    assert done.stderr.strip().splitlines()[-1] == "[]", done.stderr


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}


if __name__ == "__main__":
    GOLDEN.write_text(options())
