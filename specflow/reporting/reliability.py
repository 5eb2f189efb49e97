"""The picture of a calibration: reliability before and after, and the calibration error by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.reporting.palette import DRAFTER, PLAIN, series_colours
from specflow.reporting.panels import GRID, SOFT, legend_above, save_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEWEST_ROUNDS = 5
"""Bins with fewer are not drawn: their share is chance."""


def write_reliability(positions: Sequence[Mapping[str, Any]], path: Path) -> None:
    """``positions`` of ``specflow.calibration.report``, with ``before`` and ``after``."""
    panels = (
        partial(_diagram, positions=positions, which="before", title="Reliability at temperature 1"),
        partial(_diagram, positions=positions, which="after", title="Reliability after calibration"),
        partial(_errors, positions=positions),
    )
    save_panels(panels, path)


def _diagram(axes: Axes, *, positions: Sequence[Mapping[str, Any]], which: str, title: str) -> None:
    names = [f"position {row['position']}" for row in positions]
    colours = series_colours(names)
    axes.plot([0, 1], [0, 1], color=SOFT, linewidth=0.8, linestyle="--")
    for name, row in zip(names, positions, strict=True):
        bins = [b for b in row[which]["reliability"] if b["rounds"] >= FEWEST_ROUNDS]
        axes.plot(
            [b["predicted"] for b in bins],
            [b["happened"] for b in bins],
            color=colours[name],
            marker="o",
            markersize=3.5,
            linewidth=1.4,
            label=str(row["position"]),
        )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_title(title, pad=28)
    axes.set_xlabel("predicted survival")
    axes.set_ylabel("share accepted so far")
    axes.grid(color=GRID)
    legend_above(axes, len(names))


def _errors(axes: Axes, *, positions: Sequence[Mapping[str, Any]]) -> None:
    places = range(len(positions))
    for shift, colour, which in ((-0.2, PLAIN, "before"), (0.2, DRAFTER, "after")):
        values = [row[which]["ece"] for row in positions]
        axes.bar([p + shift for p in places], values, 0.36, color=colour, label=which)
    axes.set_xticks(list(places), [str(row["position"]) for row in positions])
    axes.set_title("Calibration error by position", pad=28)
    axes.set_xlabel("position after the anchor")
    axes.grid(axis="y", color=GRID)
    legend_above(axes, 2)
