"""``report``: everything measured, as one HTML file, pictures and a summary for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from specflow.config.report import ReportParams
from specflow.stages.contract import Arity, Context, Estimate, Inputs, Metrics, Problem

NAME = "report"
KIND = "report"
INPUTS: Mapping[str, Arity] = {
    "drafter": Arity.MANY,
    "verification": Arity.MANY,
    "benchmark": Arity.MANY,
    "load": Arity.MANY,
    "comparison": Arity.OPTIONAL,
    "features": Arity.ONE,
    "tokens": Arity.ONE,
    "conversations": Arity.ONE,
}


def check(params: ReportParams) -> Iterable[Problem]:
    if not params.title.strip():
        yield Problem(where="title", found=repr(params.title), expected="a title with at least one letter")


def files(params: ReportParams) -> Iterable[Path]:
    return ()


def estimate(params: ReportParams) -> Estimate:
    return Estimate(bytes=6_000_000, seconds=10.0)


def run(inputs: Inputs, params: ReportParams, context: Context) -> Metrics:
    """Payload: ``report.html``, ``summary.json`` and PNG pictures; logs the summary table."""
    from specflow.data.documents import iterate_documents
    from specflow.reporting.collect import gather
    from specflow.reporting.html import render_html
    from specflow.reporting.plots import write_plots
    from specflow.reporting.summary import summary, summary_table

    tokens = inputs.one("tokens")
    data = gather(
        title=params.title,
        drafters=inputs.all("drafter"),
        verifications=inputs.all("verification"),
        benchmarks=inputs.all("benchmark"),
        data=[inputs.one("conversations"), tokens, inputs.one("features")],
        documents=iterate_documents(tokens.path),
        comparison=inputs.optional("comparison"),
        loads=inputs.all("load"),
    )
    found = summary(data)
    (context.output / "summary.json").write_text(json.dumps(found, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    pictures = write_plots(data, context.output)
    page = context.output / "report.html"
    page.write_text(render_html(data), encoding="utf-8")
    if any(drafter.benchmark for drafter in data.drafters):
        context.log(summary_table(data.drafters))
    context.log(f"report: {page.name} and {len(pictures)} pictures in this artifact")
    keys = ("best_drafter", "baseline_tokens_per_second", "drafter_tokens_per_second", "speedup", "tau")
    return {key: found.get(key) for key in keys}
