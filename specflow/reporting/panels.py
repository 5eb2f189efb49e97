"""A row of panels as one PNG: the style of every picture, without matplotlib's global state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT, GRID = "#1F2733", "#5B6675", "#E3E7EC"
DPI = 144
STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": "#C5CCD5",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


def save_panels(panels: Sequence[Callable[[Axes], None]], path: Path) -> None:
    """The same panels give the same bytes."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure = _figure(len(panels))
        for axes, panel in zip(figure.axes, panels, strict=True):
            panel(axes)
        figure.savefig(path, dpi=DPI, facecolor="white", metadata={"Software": None})


def legend_above(axes: Axes, entries: int) -> None:
    """Between title and plot, where it never covers a line; at most six entries a row."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.02, 1),
        ncols=min(entries, 6),
        borderaxespad=0.3,
        columnspacing=1.2,
        handlelength=1.2,
    )


def _figure(panels: int) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * panels, 3.7), layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.1, wspace=0.06)  # type: ignore[union-attr, call-arg]
    figure.subplots(1, panels)
    return figure
