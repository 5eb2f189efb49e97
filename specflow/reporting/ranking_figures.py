"""The pictures of a ranking in the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specflow.reporting.figures import PageFigure, page_figure
from specflow.reporting.ranking import CONVENTION
from specflow.reporting.ranking_plot import mode_colours


def ranking_figures(rows: Sequence[Mapping[str, Any]]) -> list[PageFigure]:
    """Tokens per second by mode and concurrency."""
    data = [
        {
            "type": "bar",
            "name": mode,
            "x": [f"{row['concurrency']} in flight" for row in rows if row["mode"] == mode],
            "y": [row["tokens_per_second"] for row in rows if row["mode"] == mode],
            "marker": {"color": colour},
            "hovertemplate": "%{x}: %{y:.1f} tokens/s",
        }
        for mode, colour in mode_colours(rows).items()
    ]
    layout = {"barmode": "group", "yaxis": {"title": {"text": "tokens/s"}}}
    note = CONVENTION[0].upper() + CONVENTION[1:] + "."
    return [page_figure("ranking-rates", "Tokens per second", note, data, layout)]
