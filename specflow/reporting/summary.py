"""``summary.json``: the headline figures, for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specflow.config.columns import plain_table
from specflow.reporting import text
from specflow.reporting.collect import DrafterResult, ReportData


def headline(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The headline figures of one group of prompts out of ``result.json``; none where there is no baseline."""
    speedup = figures.get("speedup") or {}
    return {
        "prompts": figures["prompts"],
        "baseline_tokens_per_second": figures["plain"]["tokens_per_second"],
        "drafter_tokens_per_second": figures["speculative"]["tokens_per_second"],
        "speedup": speedup.get("ratio"),
        "speedup_low": speedup.get("low"),
        "speedup_high": speedup.get("high"),
        "tau": figures["tau"],
    }


def summary(data: ReportData) -> dict[str, Any]:
    """Top level: the drafter with the largest speed-up; ``drafters`` has each by name."""
    drafters = {d.name: _drafter(d) for d in data.drafters if d.benchmark}
    best = best_drafter(data)
    return {
        "title": data.title,
        "best_drafter": best.name if best else None,
        **(drafters[best.name] if best else {}),
        "drafters": drafters,
        "ranking": data.comparison["rows"] if data.comparison else None,
    }


def best_drafter(data: ReportData) -> DrafterResult | None:
    measured = [d for d in data.drafters if d.benchmark]
    return max(measured, key=lambda d: _ratio(d.benchmark), default=None)


def summary_table(drafters: Sequence[DrafterResult]) -> str:
    """Plain text: one line per drafter and kind, the whole run last."""
    rows = [["drafter", "prompts", "baseline tok/s", "drafter tok/s", "tau", "speed-up", "95 % interval"]]
    for drafter in drafters:
        if not drafter.benchmark:
            continue
        groups = {**drafter.benchmark["kinds"], "all": drafter.benchmark["total"]}
        for kind, figures in groups.items():
            line = headline(figures)
            rows.append(
                [
                    drafter.name,
                    kind,
                    text.number(line["baseline_tokens_per_second"], 1),
                    text.number(line["drafter_tokens_per_second"], 1),
                    text.number(line["tau"]),
                    text.times(line["speedup"]),
                    text.interval(line["speedup_low"], line["speedup_high"]),
                ]
            )
    return plain_table(rows, left=2)


def _drafter(drafter: DrafterResult) -> dict[str, Any]:
    result = drafter.benchmark or {}
    verification = drafter.verification or {}
    return {
        **headline(result["total"]),
        "kinds": {kind: headline(figures) for kind, figures in result["kinds"].items()},
        "verified": verification.get("passed"),
        "conventions": result["conventions"],
    }


def _ratio(result: Mapping[str, Any] | None) -> float:
    return float(((result or {}).get("total", {}).get("speedup") or {}).get("ratio") or 0.0)
