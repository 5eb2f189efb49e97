"""The picture of a profile: measured passes with the fitted table, and how far the table misses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specflow.costs.cells import Cell
from specflow.costs.fit import misses
from specflow.costs.tables import AdditiveTable, RowTable
from specflow.reporting.palette import DRAFTER, PLAIN, series_colours
from specflow.reporting.panels import GRID, INK, legend_above, save_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_cost_plot(cells: Sequence[Cell], additive: AdditiveTable | None, by_rows: RowTable, path: Path) -> None:
    """``additive`` none: only a table by rows alone."""
    panels = (
        partial(_passes, cells=cells, additive=additive, by_rows=by_rows),
        partial(_misses, cells=cells, additive=additive, by_rows=by_rows),
    )
    save_panels(panels, path)


def _passes(axes: Axes, *, cells: Sequence[Cell], additive: AdditiveTable | None, by_rows: RowTable) -> None:
    requests = sorted({cell.requests for cell in cells})
    colours = series_colours(map(str, requests))
    for count in requests:
        own = sorted((c for c in cells if c.requests == count), key=lambda c: c.rows)
        rows = np.arange(own[0].rows, own[-1].rows + 1)
        colour = colours[str(count)]
        axes.scatter([c.rows for c in own], [1e3 * c.median for c in own], color=colour, s=14, label=str(count))
        if additive is not None:
            axes.plot(rows, 1e3 * additive.seconds(count, rows), color=colour, linewidth=1.4)
    rows = np.arange(by_rows.rows[0], by_rows.rows[-1] + 1)
    axes.plot(rows, 1e3 * by_rows.seconds(0, rows), color=INK, linewidth=0.9, linestyle=":", label="by rows alone")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title("Milliseconds of a pass, by requests", pad=28)
    axes.set_xlabel("rows of the pass")
    axes.grid(color=GRID)
    legend_above(axes, len(requests) + 1)


def _misses(axes: Axes, *, cells: Sequence[Cell], additive: AdditiveTable | None, by_rows: RowTable) -> None:
    rows = [cell.rows for cell in cells]
    tables: list[tuple[str, str, AdditiveTable | RowTable]] = [(PLAIN, "by rows alone", by_rows)]
    if additive is not None:
        tables.append((DRAFTER, "by requests and rows", additive))
    for colour, label, table in tables:
        axes.scatter(rows, 100 * misses(table, cells), color=colour, s=14, label=label)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_title("Predicted over measured, less 1, %", pad=28)
    axes.set_xlabel("rows of the pass")
    axes.grid(color=GRID)
    legend_above(axes, len(tables))
