"""A benchmark of a server as rows: for people, and as CSV for other programs."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specflow.config.columns import plain_table
from specflow.config.load_result import CellRecord, LoadResult, Side
from specflow.reporting import text
from specflow.serving.load.figures import DRAFTER, PLAIN

HEAD = ["data set", "sampling", "load", "server", "tok/s", "TTFT ms", "TPOT ms", "p99 ITL ms", "tau", "speed-up",
        "95 % interval"]  # fmt: skip


def rows_of(cells: Sequence[CellRecord]) -> list[list[str]]:
    """Two lines a cell, without the drafter and with; the columns are those of ``HEAD``."""
    rows = []
    for cell in cells:
        for mode, side in ((PLAIN, cell.baseline), (DRAFTER, cell.drafter)):
            if side is not None:
                rows.append([cell.dataset, cell.sampling, cell.load, mode, *_figures(side), *_gain(cell, mode)])
    return rows


def table(result: LoadResult) -> str:
    """Plain text."""
    return plain_table([HEAD, *rows_of(result.cells)], left=4)


def write_csv(result: LoadResult, path: Path) -> None:
    """One line per cell and server; nested figures are columns joined by dots."""
    lines = []
    for cell in result.cells:
        shared = cell.model_dump(include={"dataset", "sampling", "load", "concurrency", "rate"})
        gain = _flat({"speedup": cell.speedup.model_dump() if cell.speedup else {}})
        for mode, side in ((PLAIN, cell.baseline), (DRAFTER, cell.drafter)):
            if side is not None:
                own = gain if mode == DRAFTER else {}
                lines.append({**shared, "server": mode, **_flat(side.model_dump()), **own})
    columns = list(dict.fromkeys(name for line in lines for name in line))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(lines)


def _figures(side: Side) -> list[str]:
    def milliseconds(spread: Any, name: str) -> str:
        return text.milliseconds(getattr(spread, name) if spread else None)

    return [
        text.number(side.tokens_per_second, 1),
        milliseconds(side.first_token, "mean"),
        milliseconds(side.per_token, "mean"),
        milliseconds(side.between_tokens, "p99"),
        text.number(side.tau),
    ]


def _gain(cell: CellRecord, mode: str) -> list[str]:
    if mode == PLAIN or cell.speedup is None:
        return ["", ""]
    return [text.times(cell.speedup.ratio), text.interval(cell.speedup.low, cell.speedup.high)]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            found |= _flat({str(i + 1): v for i, v in enumerate(value)}, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
