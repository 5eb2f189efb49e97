"""The section of the report on a server under load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specflow.config.load_result import CellRecord, LoadResult
from specflow.reporting import text
from specflow.reporting.figures import PageFigure, page_figure
from specflow.reporting.palette import series_colours
from specflow.serving.load.tables import HEAD, rows_of

PLAIN_LINE = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": {"dash": "dot", "width": 1}}


def served_section(record: Mapping[str, Any], *, prefix: str) -> dict[str, Any]:
    """``record``: ``load.json``; ``prefix`` keeps the ids of figures apart."""
    result = LoadResult.model_validate(record)
    return {
        "setting": _setting(result),
        "head": HEAD,
        "rows": rows_of(result.cells),
        "positions_head": ["data set", "sampling", "load", *(str(j + 1) for j in range(_longest(result.cells)))],
        "positions": _positions(result.cells),
        "break_even": [f"{b.dataset}, {b.sampling}: {b.says}." for b in result.break_even],
        "notes": result.notes,
        "figures": _figures(result, prefix),
        "conventions": [*result.conventions.items(), ("cache", result.cache_state)],
    }


def _setting(result: LoadResult) -> str:
    server = next(s for s in result.servers if s.mode == "drafter")
    proof = "Not proved by a parity run." if result.unproven else "Proved by a parity run before."
    return (
        f"{server.engine} {server.version or ''}; {result.alternation}. Cache: {result.cache_state}. "
        f"Answers of at most {result.conditions['max_new_tokens']} tokens, {result.conditions['repeats']} repeats. "
        f"{proof}"
    )


def _longest(cells: Sequence[CellRecord]) -> int:
    found = [c.drafter.acceptance for c in cells if c.drafter and c.drafter.acceptance]
    return max((len(a.cumulative) for a in found), default=0)


def _positions(cells: Sequence[CellRecord]) -> list[list[str]]:
    """Share of rounds that accept each position."""
    rows, longest = [], _longest(cells)
    for cell in cells:
        if cell.drafter and cell.drafter.acceptance:
            shares = [text.percent(share) for share in cell.drafter.acceptance.cumulative]
            rows.append([cell.dataset, cell.sampling, cell.load, *shares, *[text.NONE] * (longest - len(shares))])
    return rows


def _figures(result: LoadResult, prefix: str) -> list[PageFigure]:
    """Speed-up by requests in flight; none where no closed loop has a baseline."""
    lines: dict[str, list[CellRecord]] = {}
    for cell in result.cells:
        if cell.concurrency is not None and cell.speedup is not None:
            lines.setdefault(f"{cell.dataset}, {cell.sampling}", []).append(cell)
    if not lines:
        return []
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": [cell.concurrency for cell in cells],
            "y": [cell.speedup.ratio for cell in cells if cell.speedup],
            "line": {"color": colour},
            "hovertemplate": "%{x} in flight: %{y:.2f}",
        }
        for (name, cells), colour in zip(lines.items(), series_colours(lines).values(), strict=True)
    ]
    layout = {
        "xaxis": {"type": "log", "title": {"text": "requests in flight"}},
        "yaxis": {"title": {"text": "speed-up"}, "rangemode": "tozero"},
        "shapes": [PLAIN_LINE],
    }
    note = "Tokens per second in flight over those of the server without a drafter; below 1 the drafter is a loss."
    return [page_figure(f"{prefix}served", "Speed-up by load", note, data, layout)]
