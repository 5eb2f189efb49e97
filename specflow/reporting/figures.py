"""Interactive figures of the HTML report, as Plotly JSON; colours of paper and ink come from the page's theme."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specflow.reporting.collect import SHARE_BINS, SHORTEST_BIN, Corpus, DrafterResult
from specflow.reporting.curves import Band, smooth
from specflow.reporting.palette import DRAFTER, PLAIN, PREDICTED, ROUND_PARTS, series_colours

INK = "ink"
"""A line colour the page replaces by its own text colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFigure:
    """``spec``: Plotly's ``{data, layout}`` as JSON text, safe inside a script element."""

    id: str
    title: str
    note: str
    spec: str


def drafter_figures(drafter: DrafterResult) -> dict[str, list[PageFigure]]:
    """Figures by section: ``speed``, ``acceptance``, ``time``, ``training``."""
    groups, prefix = _groups(drafter), f"{drafter.name}-"
    found: dict[str, list[PageFigure]] = {"speed": [], "acceptance": [], "time": [], "training": []}
    if groups:
        found["speed"] = [_rates(groups, prefix), _tau(groups, prefix)]
        found["acceptance"] = [
            _acceptance(groups, prefix, "cumulative", "Accepted up to a position", "Share of rounds."),
            _acceptance(
                groups, prefix, "conditional", "Accepted at a position",
                "Given that every earlier position of the round was accepted.",
            ),
        ]  # fmt: skip
        found["time"] = [_round(groups, prefix), _per_token(groups, prefix)]
    if drafter.curves.loss.steps:
        found["training"].append(_loss(drafter, prefix))
    if drafter.curves.tau.steps:
        found["training"].append(_heldout(drafter, prefix))
    if drafter.curves.learning_rate.steps:
        found["training"].append(_learning_rate(drafter, prefix))
    if drafter.curves.gradient_norm.steps:
        found["training"].append(_gradient_norm(drafter, prefix))
    return found


def length_figure(corpus: Corpus) -> PageFigure:
    """Histogram of the documents' lengths, by split."""
    count = max((len(counts) for counts in corpus.length_counts.values()), default=0)
    edges = [0, *(SHORTEST_BIN * 2**i for i in range(count))]
    labels = [f"{edges[i]}–{edges[i + 1] - 1}" for i in range(count)]
    colours = dict(zip(corpus.length_counts, (DRAFTER, PLAIN), strict=False))
    names = {"heldout": "held-out"}
    data = [
        {
            "type": "bar", "name": names.get(split, split), "x": labels, "y": list(counts),
            "marker": {"color": colours.get(split, PREDICTED)}, "hovertemplate": "%{x} tokens: %{y} documents",
        }
        for split, counts in corpus.length_counts.items()
    ]  # fmt: skip
    return page_figure(
        "data-length", "Length of a document", "Documents by their tokens; each bin is twice as wide as the last.",
        data or [{"type": "bar", "x": [], "y": []}],
        {
            "barmode": "stack",
            "xaxis": {"type": "category", "title": {"text": "tokens"}},
            "yaxis": {"title": {"text": "documents"}},
        },
    )  # fmt: skip


def share_figure(corpus: Corpus) -> PageFigure:
    """Histogram of the supervised share of the documents."""
    labels = [f"{100 * i // SHARE_BINS}–{100 * (i + 1) // SHARE_BINS}" for i in range(SHARE_BINS)]
    return page_figure(
        "data-share",
        "Supervised share of a document",
        "Documents by the share of their tokens that are the target's own answer.",
        [{"type": "bar", "x": labels, "y": list(corpus.share_counts), "marker": {"color": DRAFTER}}],
        {
            "xaxis": {"type": "category", "title": {"text": "% of the tokens"}},
            "yaxis": {"title": {"text": "documents"}},
            "showlegend": False,
        },
    )


def _rates(groups: Mapping[str, Any], prefix: str) -> PageFigure:
    sides = (("plain", "plain decoding", PLAIN), ("speculative", "with drafter", DRAFTER))
    data = [
        {
            "type": "bar",
            "name": label,
            "x": list(groups),
            "y": [g[side]["tokens_per_second"] for g in groups.values()],
            "marker": {"color": colour},
            "hovertemplate": "%{x}: %{y:.1f} tokens/s",
        }
        for side, label, colour in sides
    ]
    return page_figure(
        f"{prefix}rates", "Tokens per second", "Tokens after the first over the time from the first to the last.",
        data, {"barmode": "group", "yaxis": {"title": {"text": "tokens/s"}}},
    )  # fmt: skip


def _tau(groups: Mapping[str, Any], prefix: str) -> PageFigure:
    colours = series_colours(k for k in groups if k != "all")
    data = [
        {
            "type": "bar", "name": kind, "x": [kind], "y": [group["tau"]],
            "marker": {"color": colours.get(kind, PLAIN)}, "hovertemplate": "%{y:.2f} tokens per round",
        }
        for kind, group in groups.items()
    ]  # fmt: skip
    return page_figure(
        f"{prefix}tau", "Tau by kind of prompt", "Tokens per round, bonus or correction included; 1 is plain decoding.",
        data, {"showlegend": False, "yaxis": {"title": {"text": "tokens per round"}}},
    )  # fmt: skip


def _acceptance(groups: Mapping[str, Any], prefix: str, which: str, title: str, note: str) -> PageFigure:
    colours = series_colours(k for k in groups if k != "all")
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": kind,
            "x": list(range(1, len(group["acceptance"][which]) + 1)),
            "y": group["acceptance"][which],
            "line": {"color": colours.get(kind, INK), "width": 2.5},
            "hovertemplate": "position %{x}: %{y:.1%}",
        }
        for kind, group in groups.items()
    ]
    layout = {
        "xaxis": {"title": {"text": "position after the anchor"}, "dtick": 1},
        "yaxis": {"range": [0, 1.03], "tickformat": ".0%"},
    }
    return page_figure(f"{prefix}{which}", title, note, data, layout)


def _round(groups: Mapping[str, Any], prefix: str) -> PageFigure:
    rows = {k: g["round_seconds"] for k, g in groups.items() if g["round_seconds"]}
    data = [
        {
            "type": "bar", "orientation": "h", "name": part, "y": list(rows),
            "x": [1000 * seconds[part] for seconds in rows.values()],
            "marker": {"color": colour}, "hovertemplate": "%{x:.2f} ms",
        }
        for part, colour in ROUND_PARTS.items()
    ]  # fmt: skip
    layout = {"barmode": "stack", "xaxis": {"title": {"text": "ms"}}, "yaxis": {"autorange": "reversed"}}
    return page_figure(
        f"{prefix}round", "Where a round spends its time", "Mean of one round. State: keys, values and features.",
        data, layout,
    )  # fmt: skip


def _per_token(groups: Mapping[str, Any], prefix: str) -> PageFigure:
    parts = (
        ("predicted", "predicted", PREDICTED), ("measured", "measured", DRAFTER), ("plain", "plain decoding", PLAIN),
    )  # fmt: skip
    data = [
        {
            "type": "bar", "name": label, "x": list(groups),
            "y": [_thousand(g["seconds_per_token"][part]) for g in groups.values()],
            "marker": {"color": colour}, "hovertemplate": "%{x}: %{y:.1f} ms",
        }
        for part, label, colour in parts
    ]  # fmt: skip
    return page_figure(
        f"{prefix}per-token", "Time per token, predicted and measured",
        "Predicted: the run's mean round time over the kind's tau.",
        data, {"barmode": "group", "yaxis": {"title": {"text": "ms"}}},
    )  # fmt: skip


def _loss(drafter: DrafterResult, prefix: str) -> PageFigure:
    series = drafter.curves.loss
    name = "mean of the steps since the last point"
    raw = {"name": name, "y": series.values, "line": {"color": PLAIN, "width": 1}, "opacity": 0.5}
    mean = {"name": "moving mean", "y": smooth(series.values), "line": {"color": DRAFTER, "width": 2.5}}
    data = [{"type": "scatter", "mode": "lines", "x": list(series.steps), **line} for line in (raw, mean)]
    return page_figure(
        f"{prefix}loss", "Training loss", "Cross-entropy in nats, weighted by position.", data,
        {"xaxis": {"title": {"text": "optimiser step"}}},
    )  # fmt: skip


def _learning_rate(drafter: DrafterResult, prefix: str) -> PageFigure:
    series = drafter.curves.learning_rate
    line = {"type": "scatter", "mode": "lines", "x": list(series.steps), "y": list(series.values)}
    return page_figure(
        f"{prefix}rate", "Learning rate", "At each point of the curve.",
        [{**line, "line": {"color": DRAFTER, "width": 2.5}, "hovertemplate": "step %{x}: %{y:.2e}"}],
        {
            "xaxis": {"title": {"text": "optimiser step"}}, "showlegend": False,
            "yaxis": {"rangemode": "tozero", "exponentformat": "e"},
        },
    )  # fmt: skip


def _gradient_norm(drafter: DrafterResult, prefix: str) -> PageFigure:
    series = drafter.curves.gradient_norm
    raw = {"name": "one step", "y": list(series.values), "line": {"color": PLAIN, "width": 1}, "opacity": 0.5}
    mean = {"name": "moving mean", "y": smooth(series.values), "line": {"color": DRAFTER, "width": 2.5}}
    data = [{"type": "scatter", "mode": "lines", "x": list(series.steps), **line} for line in (raw, mean)]
    return page_figure(
        f"{prefix}gradient", "Gradient norm", "Over all parameters, before clipping; logarithmic.", data,
        {"xaxis": {"title": {"text": "optimiser step"}}, "yaxis": {"type": "log"}},
    )  # fmt: skip


def _heldout(drafter: DrafterResult, prefix: str) -> PageFigure:
    curves = drafter.curves
    colours = series_colours(curves.tau_by_kind)
    lines = [(kind, series, colours[kind]) for kind, series in curves.tau_by_kind.items()]
    bands = [(name, curves.tau_band_by_kind.get(name, Band()), colour) for name, _, colour in lines]
    shades = [_shade(name, band, colour) for name, band, colour in [*bands, ("all", curves.tau_band, PLAIN)]]
    data = [
        {
            "type": "scatter", "mode": "lines+markers", "name": name, "x": list(series.steps), "y": list(series.values),
            "line": {"color": colour, "width": 2.5}, "hovertemplate": "step %{x}: %{y:.2f}", "legendgroup": name,
        }
        for name, series, colour in [*lines, ("all", curves.tau, INK)]
    ]  # fmt: skip
    return page_figure(
        f"{prefix}heldout", "Held-out tau during training",
        "The network in training walks over stored greedy answers to prompts that are never trained on. Shades: 95 % "
        "bootstrap intervals over documents.",
        [*(shade for shade in shades if shade["x"]), *data],
        {"xaxis": {"title": {"text": "optimiser step"}}, "yaxis": {"title": {"text": "tokens per round"}}},
    )  # fmt: skip


def _shade(name: str, band: Band, colour: str) -> dict[str, Any]:
    """The area between the bounds, hidden with its line."""
    return {
        "type": "scatter", "mode": "lines", "fill": "toself", "x": [*band.steps, *reversed(band.steps)],
        "y": [*band.low, *reversed(band.high)], "line": {"width": 0}, "fillcolor": _faint(colour),
        "hoverinfo": "skip", "legendgroup": name, "showlegend": False,
    }  # fmt: skip


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.14)"


def _groups(drafter: DrafterResult) -> dict[str, Any]:
    result = drafter.benchmark
    if not result:
        return {}
    kinds = dict(result["kinds"])
    return kinds if len(kinds) == 1 else {**kinds, "all": result["total"]}


def _thousand(value: float | None) -> float | None:
    return None if value is None else 1000 * value


def page_figure(id: str, title: str, note: str, data: Sequence[Any], layout: Mapping[str, Any]) -> PageFigure:
    """Checked by Plotly's own schema, then serialised with sorted keys."""
    import plotly.graph_objects as go

    checked = [{**trace, **({"line": {**trace["line"], "color": PLAIN}} if _inked(trace) else {})} for trace in data]
    go.Figure(data=checked, layout=dict(layout))
    spec = json.dumps({"data": list(data), "layout": dict(layout)}, sort_keys=True, allow_nan=False)
    return PageFigure(id=id, title=title, note=note, spec=spec.replace("<", "\\u003c"))


def _inked(trace: Mapping[str, Any]) -> bool:
    return bool(trace.get("line", {}).get("color") == INK)
