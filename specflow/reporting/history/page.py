"""The report across runs as one HTML file that loads nothing from anywhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from specflow.reporting import text
from specflow.reporting.figures import INK, PageFigure, page_figure
from specflow.reporting.history.data import HistoryData, Lineage, Measurement, Run, StageCost
from specflow.reporting.history.graph import lineage_svg
from specflow.reporting.palette import PLAIN, SERIES, series_colours


def render_history(data: HistoryData) -> str:
    """The whole page; the same data gives the same text."""
    import jinja2
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [
                jinja2.PackageLoader("specflow.reporting.history", "templates"),
                jinja2.PackageLoader("specflow.reporting", "templates"),
            ]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("history.html.j2").render(
        title=data.title,
        lead=_lead(data),
        cards=_cards(data),
        time_figures=_time_figures(data.measurements),
        drafters=[
            {
                "service": d.service, "key": d.key[:12], "name": d.name, "state": d.state, "since": _when(d.since),
                "rate": text.number(d.tokens_per_second, 1), "tau": text.number(d.tau), "why": d.reason,
            }
            for d in data.drafters
        ],
        runs=[_run(run) for run in reversed(data.runs)],
        graphs=[_graph(lineage) for lineage in data.lineages],
        costs=_costs(data),
        plotly=get_plotlyjs(),
    )  # fmt: skip


def _lead(data: HistoryData) -> str:
    promoted = [d for d in data.drafters if d.state == "promoted"]
    if not data.runs and not data.measurements:
        return "Nothing has been measured yet."
    taken = sum(run.outcome == "promoted" for run in data.runs)
    if not data.runs:
        return f"{len(data.measurements)} measurements, and no retraining that came to a decision."
    runs = "1 retraining" if len(data.runs) == 1 else f"{len(data.runs)} retrainings"
    now = "; ".join(f"{d.service}: {d.name or 'drafter'} {d.key[:12]} since {_when(d.since)}" for d in promoted)
    return f"{runs}, {taken} promoted. {'Promoted now: ' + now if now else 'No drafter is promoted now'}."


def _cards(data: HistoryData) -> list[dict[str, Any]]:
    """Of the newest decision."""
    if not data.runs:
        return []
    run = data.runs[-1]
    best, baseline = run.decision["best"], run.decision["baseline"]
    gain = best["gain"] or {}
    against = "promoted before" if baseline["drafter"] else "plain decoding"
    return [
        {"label": "Newest decision", "value": run.outcome, "unit": "", "sub": _when(run.time), "main": True},
        {"label": "New drafter", "value": text.number(best["tokens_per_second"], 1), "unit": "tok/s",
         "sub": f"{run.decision['rule']['concurrency']} in flight", "main": False},
        {"label": f"Over {against}", "value": text.times(gain.get("ratio")), "unit": "",
         "sub": f"interval {text.interval(gain.get('low'), gain.get('high'))}", "main": False},
        {"label": "Tau", "value": text.number(best["tau"]), "unit": "tok/round",
         "sub": f"before {text.number(baseline['tau'])}", "main": False},
    ]  # fmt: skip


def _time_figures(measurements: Sequence[Measurement]) -> list[PageFigure]:
    if not measurements:
        return []
    names = sorted({m.drafter for m in measurements})
    colours = series_colours(names)
    plain = _trace("plain decoding", measurements, "plain_tokens_per_second", PLAIN)
    figures = []
    for name, title, note, unit, more in (
        ("tau", "Tau", "Tokens per round, bonus or correction included.", "tokens per round", []),
        ("tokens_per_second", "Tokens per second", "Of all requests in flight.", "tokens/s", [plain]),
    ):
        lines = [_trace(d, [m for m in measurements if m.drafter == d], name, colours[d]) for d in names]
        stars = _stars([m for m in measurements if m.promoted], name)
        layout = {"yaxis": {"title": {"text": unit}, "rangemode": "tozero"}, "xaxis": {"type": "date", "nticks": 5}}
        data = [*more, *lines, *([stars] if stars["x"] else [])]
        figures.append(page_figure(f"time-{name}", title, note, data, layout))
    return figures


def _trace(name: str, measurements: Sequence[Measurement], field: str, colour: str) -> dict[str, Any]:
    points = [(m.time.isoformat(), getattr(m, field), m.key[:12]) for m in measurements if getattr(m, field)]
    return {
        "type": "scatter", "mode": "lines+markers", "name": name, "x": [x for x, _, _ in points],
        "y": [y for _, y, _ in points], "customdata": [key for _, _, key in points],
        "line": {"color": colour, "width": 2.5}, "hovertemplate": "%{y:.2f}<br>%{customdata}",
    }  # fmt: skip


def _stars(measurements: Sequence[Measurement], field: str) -> dict[str, Any]:
    return {
        **_trace("promoted", measurements, field, INK),
        "mode": "markers",
        "marker": {"symbol": "star", "size": 12},
    }


def _run(run: Run) -> dict[str, Any]:
    best, baseline = run.decision["best"], run.decision["baseline"]
    gain = best["gain"] or {}
    return {
        "when": _when(run.time),
        "service": run.service,
        "outcome": run.outcome,
        "state": "promoted" if run.outcome == "promoted" else "candidate",
        "figures": [
            text.number(best["tokens_per_second"], 1),
            text.number(baseline["tokens_per_second"], 1),
            text.number(run.decision["plain_tokens_per_second"], 1),
            f"{text.times(gain.get('ratio'))} ({text.interval(gain.get('low'), gain.get('high'))})",
        ],
        "why": run.reason,
    }


def _graph(lineage: Lineage) -> dict[str, str]:
    return {"name": lineage.service, "note": lineage.note, "svg": lineage_svg(lineage.nodes)}


def _costs(data: HistoryData) -> dict[str, Any] | None:
    if not data.costs:
        return None
    return {
        "note": "Seconds and bytes of what was made. In the figure, each retraining bears what it made itself; slices "
        "that an earlier one made cost nothing again.",
        "figures": _cost_figures(data.runs),
        "head": ["stage", "artifacts", "seconds", "MB"],
        "rows": [_cost_row(cost) for cost in data.costs] + [_total(data.costs)],
    }


def _cost_row(cost: StageCost) -> list[str]:
    return [cost.stage, text.count(cost.made), text.number(cost.seconds, 1), text.number(cost.bytes / 1e6, 1)]


def _total(costs: Sequence[StageCost]) -> list[str]:
    made, seconds, size = (sum(getattr(cost, name) for cost in costs) for name in ("made", "seconds", "bytes"))
    return _cost_row(StageCost(stage="all", made=made, seconds=seconds, bytes=size))


def _cost_figures(runs: Sequence[Run]) -> list[PageFigure]:
    if not runs:
        return []
    stages = list(dict.fromkeys(cost.stage for run in runs for cost in run.costs))
    colours = series_colours(stages)
    labels = [f"{number}. {_when(run.time)}" for number, run in enumerate(runs, start=1)]
    seconds: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(runs))
    for place, run in enumerate(runs):
        for cost in run.costs:
            seconds[cost.stage][place] += cost.seconds
    data = [
        {
            "type": "bar", "name": stage, "x": labels, "y": seconds[stage],
            # Hatched where the palette begins anew: no two stages look alike.
            "marker": {"color": colours[stage], "pattern": {"shape": "" if number < len(SERIES) else "/"}},
            "hovertemplate": f"{stage}: %{{y:.1f}} s",
        }
        for number, stage in enumerate(stages)
    ]  # fmt: skip
    layout = {"barmode": "stack", "yaxis": {"title": {"text": "seconds"}}, "xaxis": {"type": "category"}}
    note = "Time of the stages that a retraining ran; reused ones are not in it."
    return [page_figure("cost-runs", "Seconds by retraining", note, data, layout)]


def _when(time: datetime) -> str:
    return f"{time.astimezone():%Y-%m-%d %H:%M}"
