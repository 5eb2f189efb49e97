"""Multiplies the numbers, once per item."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specflow.stages.contract import Arity, Context, Estimate, Inputs, Problem, StageError
from tests.workflow.fakes.params import ScaleParams

NAME = "scale"
KIND = "scaled"
INPUTS = {"numbers": Arity.ONE}


def check(params: ScaleParams) -> Iterable[Problem]:
    return []


def files(params: ScaleParams) -> Iterable[Path]:
    return []


def estimate(params: ScaleParams) -> Estimate:
    return Estimate()


def run(inputs: Inputs, params: ScaleParams, context: Context) -> Mapping[str, Any]:
    if params.fail:
        raise StageError("the factor was told to fail")
    numbers = [int(p.read_text()) for p in sorted(inputs.one("numbers").path.glob("*.txt"))]
    (context.output / "sub").mkdir()
    (context.output / "sub" / "sum.txt").write_text(str(params.factor * sum(numbers)))
    return {"sum": params.factor * sum(numbers), "item": context.item}
