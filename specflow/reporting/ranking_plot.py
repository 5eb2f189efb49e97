"""``comparison.png``: tokens per second by mode and concurrency, and tau of each drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.reporting import text
from specflow.reporting.palette import PLAIN as GREY
from specflow.reporting.palette import series_colours
from specflow.reporting.panels import GRID, save_panels
from specflow.reporting.ranking import PLAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]


def mode_colours(rows: Sequence[Row]) -> dict[str, str]:
    """Plain decoding grey, drafters in alphabetical order."""
    return {PLAIN: GREY, **series_colours(sorted({row["mode"] for row in rows} - {PLAIN}))}


def write_ranking_plot(rows: Sequence[Row], path: Path) -> None:
    """One group of bars per concurrency; tau at the last one."""
    panels = [partial(_rates, rows=rows)]
    if any(row["tau"] is not None for row in rows):
        panels.append(partial(_tau, rows=rows))
    save_panels(panels, path)


def _rates(axes: Axes, rows: Sequence[Row]) -> None:
    colours, groups = mode_colours(rows), sorted({row["concurrency"] for row in rows})
    width = 0.8 / len(colours)
    top = max(row["tokens_per_second"] for row in rows)
    for number, (mode, colour) in enumerate(colours.items()):
        own = {row["concurrency"]: row for row in rows if row["mode"] == mode}
        places = [g + (number - (len(colours) - 1) / 2) * width for g in range(len(groups))]
        heights = [own[c]["tokens_per_second"] for c in groups]
        axes.bar(places, heights, 0.92 * width, color=colour, label=mode)
        for place, concurrency, height in zip(places, groups, heights, strict=True):
            if mode != PLAIN:
                ratio = text.times(own[concurrency]["speedup"]["ratio"])
                axes.text(place, height + 0.02 * top, ratio, ha="center", va="bottom", fontsize=8)
    axes.set_ylim(0, 1.12 * top)
    axes.set_xticks(range(len(groups)), [f"{c} in flight" for c in groups])
    axes.set_title("Tokens per second, and against plain decoding", pad=12 + 16 * -(-len(colours) // 3))
    axes.grid(axis="y", color=GRID)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, borderaxespad=0.2)


def _tau(axes: Axes, rows: Sequence[Row]) -> None:
    last = max(row["concurrency"] for row in rows)
    own = sorted((r for r in rows if r["concurrency"] == last and r["tau"] is not None), key=lambda r: r["tau"])
    colours = mode_colours(rows)
    axes.barh([r["mode"] for r in own], [r["tau"] for r in own], 0.6, color=[colours[r["mode"]] for r in own])
    for place, row in enumerate(own):
        axes.text(row["tau"], place, f" {text.number(row['tau'])}", va="center", fontsize=9)
    axes.set_xlim(0, 1.15 * max(r["tau"] for r in own))
    axes.set_title("Tau: tokens per round")
    axes.grid(axis="x", color=GRID)
