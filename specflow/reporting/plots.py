"""PNG pictures of a report, through matplotlib without its global state; the same data gives the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from specflow.reporting import text
from specflow.reporting.collect import DrafterResult, ReportData
from specflow.reporting.curves import Band, smooth
from specflow.reporting.palette import DRAFTER, PLAIN, PREDICTED, ROUND_PARTS, series_colours
from specflow.reporting.panels import GRID, INK, SOFT, legend_above, save_panels
from specflow.reporting.summary import best_drafter

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Panel(Protocol):
    def __call__(self, axes: Axes, drafter: DrafterResult) -> None: ...


def write_plots(data: ReportData, directory: Path) -> list[Path]:
    """``overview loss optimiser acceptance round``, all PNG, of the best drafter; with its name for each other one."""
    best = best_drafter(data) or (data.drafters[0] if data.drafters else None)
    written: list[Path] = []
    for drafter in data.drafters:
        suffix = "" if drafter is best else f"-{drafter.name}"
        pictures: dict[str, Sequence[Panel]] = {"loss": (loss, heldout_tau)}
        if drafter.curves.learning_rate.steps:
            pictures["optimiser"] = (learning_rate, gradient_norm)
        if drafter.benchmark:
            pictures |= {
                "overview": (rates, cumulative),
                "acceptance": (cumulative, conditional),
                "round": (round_split, time_per_token),
            }
        for name, panels in pictures.items():
            path = directory / f"{name}{suffix}.png"
            _save(drafter, panels, path)
            written.append(path)
    return sorted(written)


def rates(axes: Axes, drafter: DrafterResult) -> None:
    """Tokens per second by kind, plain beside drafter, with the speed-up above each pair."""
    groups = _groups(drafter)
    places = range(len(groups))
    plain = [g["plain"]["tokens_per_second"] or 0.0 for g in groups.values()]
    fast = [g["speculative"]["tokens_per_second"] or 0.0 for g in groups.values()]
    axes.bar([p - 0.2 for p in places], plain, 0.36, color=PLAIN, label="plain decoding")
    axes.bar([p + 0.2 for p in places], fast, 0.36, color=DRAFTER, label="with drafter")
    top = max([*plain, *fast, 1e-9])
    for place, (group, high) in enumerate(zip(groups.values(), map(max, plain, fast), strict=True)):
        ratio = (group["speedup"] or {}).get("ratio")
        axes.text(place, high + 0.02 * top, text.times(ratio), ha="center", va="bottom", weight="bold", fontsize=10)
    axes.set_ylim(0, 1.12 * top)
    axes.set_xticks(list(places), list(groups))
    axes.set_title("Tokens per second", pad=28)
    axes.grid(axis="y", color=GRID)
    legend_above(axes, 2)


def cumulative(axes: Axes, drafter: DrafterResult) -> None:
    _acceptance(axes, drafter, "cumulative", "Share of rounds accepted up to a position")


def conditional(axes: Axes, drafter: DrafterResult) -> None:
    _acceptance(axes, drafter, "conditional", "… given that all earlier positions were accepted")


def loss(axes: Axes, drafter: DrafterResult) -> None:
    series = drafter.curves.loss
    axes.plot(series.steps, series.values, color=PLAIN, alpha=0.45, linewidth=0.8)
    axes.plot(series.steps, smooth(series.values), color=DRAFTER, linewidth=1.8)
    axes.set_title("Training loss", pad=28)
    axes.set_xlabel("optimiser step")
    axes.grid(color=GRID)


def learning_rate(axes: Axes, drafter: DrafterResult) -> None:
    series = drafter.curves.learning_rate
    axes.plot(series.steps, series.values, color=DRAFTER, linewidth=1.8)
    axes.set_title("Learning rate", pad=28)
    axes.set_xlabel("optimiser step")
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    axes.grid(color=GRID)


def gradient_norm(axes: Axes, drafter: DrafterResult) -> None:
    """On a logarithmic scale: the first steps are often a hundred times the last."""
    series = drafter.curves.gradient_norm
    axes.plot(series.steps, series.values, color=PLAIN, alpha=0.45, linewidth=0.8)
    axes.plot(series.steps, smooth(series.values), color=DRAFTER, linewidth=1.8)
    if any(value > 0 for value in series.values):
        axes.set_yscale("log")
    axes.set_title("Gradient norm before clipping", pad=28)
    axes.set_xlabel("optimiser step")
    axes.grid(color=GRID)


def heldout_tau(axes: Axes, drafter: DrafterResult) -> None:
    """With 95 % intervals as shades; they overlap where the kinds do."""
    curves = drafter.curves
    colours = series_colours(curves.tau_by_kind)
    for kind, series in curves.tau_by_kind.items():
        _shade(axes, curves.tau_band_by_kind.get(kind), colours[kind])
        axes.plot(series.steps, series.values, color=colours[kind], linewidth=1.4, marker="o", markersize=3, label=kind)
    _shade(axes, curves.tau_band, INK)
    axes.plot(curves.tau.steps, curves.tau.values, color=INK, linewidth=2, marker="o", markersize=3.5, label="all")
    axes.set_title("Held-out tau during training", pad=28)
    axes.set_xlabel("optimiser step")
    axes.grid(color=GRID)
    if curves.tau.steps:
        legend_above(axes, len(colours) + 1)


def _shade(axes: Axes, band: Band | None, colour: str) -> None:
    if band and band.steps:
        axes.fill_between(band.steps, band.low, band.high, color=colour, alpha=0.13, linewidth=0)


def round_split(axes: Axes, drafter: DrafterResult) -> None:
    """Mean milliseconds of one round, stacked, one bar per group."""
    groups = {k: g for k, g in _groups(drafter).items() if g["round_seconds"]}
    left = [0.0] * len(groups)
    for part, colour in ROUND_PARTS.items():
        widths = [1000 * g["round_seconds"][part] for g in groups.values()]
        axes.barh(list(groups), widths, left=left, color=colour, label=part, height=0.55)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for place, total in enumerate(left):
        axes.text(total, place, f"  {total:.1f}", va="center", color=SOFT)
    axes.set_xlim(0, 1.15 * max([*left, 1e-9]))
    axes.set_ylim(len(groups) - 0.4, -0.6)
    axes.set_title("Milliseconds of one round", pad=28)
    axes.grid(axis="x", color=GRID)
    legend_above(axes, len(ROUND_PARTS))


def time_per_token(axes: Axes, drafter: DrafterResult) -> None:
    groups = _groups(drafter)
    parts = (("predicted", PREDICTED), ("measured", DRAFTER), ("plain", PLAIN))
    for shift, (part, colour) in enumerate(parts):
        values = [1000 * (g["seconds_per_token"][part] or 0.0) for g in groups.values()]
        places = [p + 0.26 * (shift - 1) for p in range(len(groups))]
        axes.bar(places, values, 0.24, color=colour, label=part)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_title("Milliseconds per token", pad=28)
    axes.grid(axis="y", color=GRID)
    legend_above(axes, len(parts))


def _acceptance(axes: Axes, drafter: DrafterResult, which: str, title: str) -> None:
    groups = _groups(drafter)
    colours = series_colours(k for k in groups if k != "all")
    for kind, group in groups.items():
        values = [float("nan") if v is None else 100 * v for v in group["acceptance"][which]]
        positions = list(range(1, len(values) + 1))
        colour = colours.get(kind, INK)
        axes.plot(positions, values, color=colour, marker="o", markersize=4, linewidth=1.8, label=kind)
    axes.set_ylim(0, 103)
    axes.set_title(title, pad=28)
    axes.set_xlabel("position after the anchor")
    axes.set_ylabel("%")
    axes.set_xticks(range(1, 1 + max(len(g["acceptance"][which]) for g in groups.values())))
    axes.grid(color=GRID)
    legend_above(axes, len(groups))


def _groups(drafter: DrafterResult) -> dict[str, Mapping[str, Any]]:
    """Kinds, then the whole run where that is more than one kind."""
    result = drafter.benchmark or {}
    kinds: dict[str, Mapping[str, Any]] = dict(result["kinds"])
    return kinds if len(kinds) == 1 else {**kinds, "all": result["total"]}


def _save(drafter: DrafterResult, panels: Sequence[Panel], path: Path) -> None:
    save_panels([partial(panel, drafter=drafter) for panel in panels], path)
