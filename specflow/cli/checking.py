"""Check configuration and flow files, all of them, and report everything wrong at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specflow.config import resources
from specflow.config.document import read_document
from specflow.config.errors import InputErrors, InputProblem
from specflow.config.loading import load_config
from specflow.workflow.flow import load_flow


def check_files(names: Sequence[str]) -> list[str]:
    """The files, if all are valid; without names, every shipped one. Raises ``InputErrors``."""
    files = [Path(name) for name in names] or [
        path
        for folder in ("configs", "flows")
        for name in resources.names(folder)
        for path in [resources.find(folder, name)]
    ]
    problems: list[InputProblem] = []
    for file in files:
        try:
            _check(file)
        except InputErrors as errors:
            problems += errors.problems
    if problems:
        raise InputErrors(problems)
    return [str(file) for file in files]


def _check(file: Path) -> None:
    if "stages" in read_document(file).data:
        load_flow(file)
    else:
        load_config(file)
