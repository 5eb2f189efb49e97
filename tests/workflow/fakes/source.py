"""Writes numbers in pieces that survive a kill; every piece made is noted in a side log."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specflow.stages.contract import Arity, Context, Estimate, Inputs, Problem
from tests.workflow.fakes.params import SourceParams

NAME = "source"
KIND = "numbers"
INPUTS: Mapping[str, Arity] = {}


def check(params: SourceParams) -> Iterable[Problem]:
    if params.count > 1000:
        yield Problem(where="count", found=str(params.count), expected="at most 1000", hint="use fewer")


def files(params: SourceParams) -> Iterable[Path]:
    return [params.data] if params.data else []


def estimate(params: SourceParams) -> Estimate:
    return Estimate(bytes=1000 * params.count, seconds=1.0)


def run(inputs: Inputs, params: SourceParams, context: Context) -> Mapping[str, Any]:
    if params.child:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    with context.progress("pieces", total=params.count) as bar:
        for number in range(params.count):
            piece = context.scratch / f"{number}.txt"
            if not piece.exists():
                time.sleep(params.seconds)
                partial = piece.with_suffix(".part")
                partial.write_text(str(number))
                if params.side_log:
                    with params.side_log.open("a") as log:
                        log.write(f"{number}\n")
                partial.rename(piece)
            bar.advance()
            bar.describe(f"last {number}")
    for number in range(params.count):
        (context.scratch / f"{number}.txt").rename(context.output / f"{number}.txt")
    context.log(f"wrote {params.count} pieces")
    return {"count": params.count}
