"""Adds what all items made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specflow.stages.contract import Arity, Context, Estimate, Inputs, Problem
from tests.workflow.fakes.params import TotalParams

NAME = "total"
KIND = "total"
INPUTS = {"scaled": Arity.MANY, "numbers": Arity.OPTIONAL}


def check(params: TotalParams) -> Iterable[Problem]:
    return []


def files(params: TotalParams) -> Iterable[Path]:
    return []


def estimate(params: TotalParams) -> Estimate:
    return Estimate(bytes=params.bytes)


def run(inputs: Inputs, params: TotalParams, context: Context) -> Mapping[str, Any]:
    total = sum(int(a.file("sub/sum.txt").read_text()) for a in inputs.all("scaled"))
    (context.output / "total.txt").write_text(str(total))
    return {"total": total}
