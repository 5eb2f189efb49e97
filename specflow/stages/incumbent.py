"""``incumbent``: the drafter that a new one must beat, as an artifact of the flow."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from specflow.config.gate import IncumbentParams
from specflow.drafters.files import drafter_directory, weight_files
from specflow.stages.contract import Arity, Context, Estimate, Inputs, Metrics, Problem, StageError

NAME = "incumbent"
KIND = "drafter"
INPUTS: Mapping[str, Arity] = {}


def check(params: IncumbentParams) -> Iterable[Problem]:
    if params.drafter is not None and params.drafter.is_dir() and not weight_files(params.drafter):
        expected = "the artifact of a drafter, with its weights as safetensors"
        yield Problem(where="drafter", found=str(params.drafter), expected=expected)


def files(params: IncumbentParams) -> Iterable[Path]:
    """All files of the drafter, so that the key follows its content."""
    if params.drafter is None:
        return []
    directory = drafter_directory(params.drafter)
    # One that is gone is reported as a missing file.
    return sorted(p for p in directory.iterdir() if p.is_file()) if directory.is_dir() else [directory]


def estimate(params: IncumbentParams) -> Estimate:
    return Estimate(bytes=sum(file.stat().st_size for file in files(params) if file.exists()), seconds=1.0)


def run(inputs: Inputs, params: IncumbentParams, context: Context) -> Metrics:
    """Payload: ``drafter/``, byte for byte that of the drafter's own artifact."""
    found = list(files(params))
    if not found:
        raise StageError("incumbent: expected a drafter in incumbent.drafter, found none")
    folder = context.output / "drafter"
    folder.mkdir()
    for file in found:
        shutil.copyfile(file, folder / file.name)
    return {"files": len(found)}
