"""The report as one HTML file that loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specflow.reporting import text
from specflow.reporting.certificate import distributions, short
from specflow.reporting.collect import Corpus, DrafterResult, ReportData
from specflow.reporting.figures import drafter_figures, length_figure, share_figure
from specflow.reporting.ranking import RANKING_HEAD, cells
from specflow.reporting.ranking_figures import ranking_figures
from specflow.reporting.scheduled import scheduled_panel
from specflow.reporting.selector import selector_note
from specflow.reporting.served import served_section
from specflow.reporting.summary import best_drafter, headline

EXAMPLE_LENGTH = 160
"""Characters of a set-aside row's example: a detail may quote a whole text."""


def render_html(data: ReportData) -> str:
    """The whole page; the same data gives the same text."""
    import jinja2
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("specflow.reporting", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    best = best_drafter(data)
    return environment.get_template("report.html.j2").render(
        data=data,
        best=best,
        lead=_lead(best) if best else _lead_without_benchmark(data),
        cards=_cards(best) if best else [],
        comparison=_comparison(data.drafters) if len(data.drafters) > 1 and best else None,
        ranking=_ranking(data.comparison) if data.comparison else None,
        drafters=[_drafter(d) for d in data.drafters],
        corpus=_corpus(data.corpus),
        features_rows=_features(data.features),
        limits=limits(best, served=any(d.served for d in data.drafters)),
        conventions=_conventions(best.benchmark) if best and best.benchmark else [],
        lineage=[_lineage(row) for row in data.lineage],
        plotly=get_plotlyjs(),
    )


def limits(best: DrafterResult | None, *, served: bool = False) -> list[str]:
    """What a reader must not conclude from the figures. ``served``: a server was measured under load."""
    if served and best is None:
        return [
            "The load generator and the server share what they run on, where both are on one machine.",
            "Prompts of the kinds listed. A drafter learns a workload; on other text expect the lower end of this.",
        ]
    engine = (best.benchmark or {}).get("engine", {}) if best else {}
    device = str(engine.get("device", "cpu")).upper()
    return [
        "One request at a time. With many requests in flight a server is less bound by reading weights, and the gain "
        "of any drafter shrinks; it can turn into a loss.",
        f"One machine ({device}). The price of verifying several rows against one differs on other hardware, and with "
        "it the speed-up; tau carries over, the time of a round does not.",
        *([] if _sampled(best) else ["Greedy decoding. With sampling, acceptance is usually lower."]),
        "Prompts of the kinds listed. A drafter learns a workload; on other text expect the lower end of this.",
        "The embedded engine, except under the heading on the server."
        if served
        else "The embedded engine. A serving engine has other costs per round and was not run here.",
    ]


def _sampled(best: DrafterResult | None) -> bool:
    return bool(best and (best.benchmark or {}).get("sampling", {}).get("temperature"))


def _lead_without_benchmark(data: ReportData) -> str:
    if data.comparison:
        return str(_ranking(data.comparison)["lead"])
    if any(drafter.served for drafter in data.drafters):
        return "A server with each drafter was measured under load, in turn with the same server without."
    return "No benchmark among the inputs: nothing is said about speed."


def _lead(best: DrafterResult) -> str:
    total = headline((best.benchmark or {})["total"])
    if total["speedup"] is None:
        return f"Drafter {best.name} was run, but no baseline could be formed: nothing is said about a speed-up."
    verb = "delivers" if total["speedup"] >= 1 else "slows down to"
    return (
        f"On {total['prompts']} held-out prompts the target with drafter {best.name} {verb} "
        f"{text.number(total['drafter_tokens_per_second'], 1)} tokens per second where plain decoding in the same run "
        f"delivers {text.number(total['baseline_tokens_per_second'], 1)}."
    )


def _cards(best: DrafterResult) -> list[dict[str, Any]]:
    result = best.benchmark or {}
    total = headline(result["total"])
    span = text.interval(total["speedup_low"], total["speedup_high"])
    tree = result.get("tree")
    proposals = tree["steps"] if tree else result["drafter"].get("num_proposals")
    return [
        {
            "label": "Speed-up", "value": text.times(total["speedup"]), "unit": "",
            "sub": f"95 % interval {span}", "main": True,
        },
        {
            "label": "With drafter", "value": text.number(total["drafter_tokens_per_second"], 1), "unit": "tok/s",
            "sub": f"batch 1, {result['sampling']['name']}", "main": False,
        },
        {
            "label": "Plain decoding", "value": text.number(total["baseline_tokens_per_second"], 1), "unit": "tok/s",
            "sub": "same engine, same run", "main": False,
        },
        {
            "label": "Tau", "value": text.number(total["tau"]), "unit": "tok/round",
            "sub": f"at most {proposals + 1}" if proposals else "", "main": False,
        },
    ]  # fmt: skip


def _groups(result: Mapping[str, Any]) -> dict[str, Any]:
    return {**result["kinds"], "all prompts": result["total"]}


def _comparison(drafters: Sequence[DrafterResult]) -> dict[str, Any]:
    rows = []
    for drafter in drafters:
        if drafter.benchmark:
            line = headline(drafter.benchmark["total"])
            rows.append(
                [
                    drafter.name,
                    text.number(line["baseline_tokens_per_second"], 1),
                    text.number(line["drafter_tokens_per_second"], 1),
                    text.number(line["tau"]),
                    text.times(line["speedup"]),
                    text.interval(line["speedup_low"], line["speedup_high"]),
                ]
            )
        else:
            rows.append([drafter.name, *[text.NONE] * 5])
    return {"head": ["drafter", "plain tok/s", "drafter tok/s", "tau", "speed-up", "95 % interval"], "rows": rows}


def _ranking(record: Mapping[str, Any]) -> dict[str, Any]:
    """Drafters measured in turn with plain decoding, in one run."""
    rows = record["rows"]
    last = [row for row in rows if row["concurrency"] == max(r["concurrency"] for r in rows)]
    first = last[0]
    return {
        "lead": (
            f"With {first['concurrency']} in flight the quickest is {first['mode']}: "
            f"{text.number(first['tokens_per_second'], 1)} tokens per second."
        ),
        "note": f"All modes took turns in one run. Tokens per second: {record['conventions']['tokens_per_second']}.",
        "head": RANKING_HEAD,
        "rows": [cells(row) for row in rows],
        "figures": ranking_figures(rows),
    }


def _drafter(drafter: DrafterResult) -> dict[str, Any]:
    result, verification = drafter.benchmark, drafter.verification or {}
    checks = [
        {"what": c["what"], "passed": c["passed"], "numbers": text.compact(short(c["numbers"]))}
        for c in verification.get("checks", [])
    ]
    failed = sum(not c["passed"] for c in checks)
    return {
        "name": drafter.name,
        "result": result is not None,
        "figures": drafter_figures(drafter),
        "training_note": training_note(drafter),
        "checks": checks,
        "distributions": distributions(verification),
        "checks_note": f"{len(checks) - failed} of {len(checks)} checks passed.",
        "served": served_section(drafter.served, prefix=f"{drafter.name}-") if drafter.served else None,
        **(_measured(result) if result else {}),
    }


def training_note(drafter: DrafterResult) -> str:
    """Steps, what the drafter started from, and the best held-out walk."""
    curves, lineage = drafter.curves, drafter.manifest.get("lineage", {})
    sentences = [f"Steps: {text.count(max(curves.loss.steps, default=0))}."]
    warm = lineage.get("init_from")
    if warm:
        parts = [f"{warm['taken']} tensors taken"]
        parts += [f"{what} {', '.join(warm[what])}" for what in ("new", "left") if warm[what]]
        sentences.append(f"Started from drafter {warm['source'][:12]}: {'; '.join(parts)}.")
    elif lineage.get("start"):
        sentences.append(f"Started from {lineage['start']}.")
    if curves.tau.steps:
        best = max(range(len(curves.tau.steps)), key=lambda i: (curves.tau.values[i], -curves.tau.steps[i]))
        step = curves.tau.steps[best]
        band = dict(
            zip(curves.tau_band.steps, zip(curves.tau_band.low, curves.tau_band.high, strict=True), strict=True)
        )
        span = f" (95 % interval {text.interval(*band[step])})" if step in band else ""
        sentences.append(f"Kept: step {text.count(step)}, tau {text.number(curves.tau.values[best])}{span}.")
    if about_selector := selector_note(curves.best):
        sentences.append(about_selector)
    return " ".join(sentences)


def _measured(result: Mapping[str, Any]) -> dict[str, Any]:
    engine = result["engine"]
    return {
        "setting": f"Batch {result['concurrency']}, {result['sampling']['name']}, {engine['precision']} arithmetic, "
        f"{engine['threads']} threads; plain and speculative decoding alternate prompt by prompt."
        f"{_tree(result)}{_differences(result)}",
        "speed": {
            "head": ["kind", "prompts", "plain tok/s", "drafter tok/s", "speed-up", "95 % interval", "median prompt",
                     "with prefill", "tau"],
            "rows": [_speed_row(kind, group) for kind, group in _groups(result).items()],
        },
        "acceptance": {
            "head": ["kind", "", *[str(i + 1) for i in range(len(result["total"]["acceptance"]["cumulative"]))]],
            "rows": [
                [kind, which, *_padded(group["acceptance"][which], len(result["total"]["acceptance"][which]))]
                for kind, group in _groups(result).items()
                for which in ("cumulative", "conditional")
            ],
        },
        "time": {
            "head": ["kind", "draft ms", "verify ms", "state ms", "other ms", "round ms", "predicted ms/tok",
                     "measured ms/tok", "plain ms/tok"],
            "rows": [_time_row(kind, group) for kind, group in _groups(result).items()],
        },
        "transformers": _transformers(result.get("transformers")),
        "scheduled": scheduled_panel(result),
    }  # fmt: skip


def _speed_row(kind: str, group: Mapping[str, Any]) -> list[str]:
    speedup = group["speedup"] or {}
    return [
        kind,
        text.count(group["prompts"]),
        text.number(group["plain"]["tokens_per_second"], 1),
        text.number(group["speculative"]["tokens_per_second"], 1),
        text.times(speedup.get("ratio")),
        text.interval(speedup.get("low"), speedup.get("high")),
        text.times(speedup.get("median_of_prompts")),
        text.times(speedup.get("with_prefill")),
        text.number(group["tau"]),
    ]


def _time_row(kind: str, group: Mapping[str, Any]) -> list[str]:
    seconds, per_token = group["round_seconds"] or {}, group["seconds_per_token"]
    parts = [text.milliseconds(seconds.get(part)) for part in ("draft", "verify", "state", "other", "total")]
    return [kind, *parts, *(text.milliseconds(per_token[part]) for part in ("predicted", "measured", "plain"))]


def _padded(values: Sequence[float | None], width: int) -> list[str]:
    return [text.percent(v) for v in values] + [text.NONE] * (width - len(values))


def _transformers(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not found:
        return None
    rows = [
        [name, text.number(row["tokens_per_second"], 1), text.times(row.get("plain_over_this"))]
        for name, row in found["rates"].items()
    ]
    return {
        "note": f"{found['prompts']} of the prompts, {found['max_new_tokens']} tokens each, alternating, same threads. "
        "Decode only, as above.",
        "head": ["generate", "tok/s", "plain decoding here is faster by"],
        "rows": rows,
    }


def _corpus(corpus: Corpus) -> dict[str, Any]:
    rows = [
        [
            row["split"], row["kind"], text.count(row["documents"]), text.count(row["tokens"]),
            text.count(row["supervised"]), text.percent(row["supervised"] / max(row["tokens"], 1)),
            text.count(row["longest"]),
        ]
        for row in corpus.rows
    ]  # fmt: skip
    documents, tokens, supervised = (sum(row[k] for row in corpus.rows) for k in ("documents", "tokens", "supervised"))
    share = text.percent(supervised / max(tokens, 1))
    longest = text.count(max((row["longest"] for row in corpus.rows), default=0))
    rows.append(["all", "", text.count(documents), text.count(tokens), text.count(supervised), share, longest])
    return {
        "head": ["split", "kind", "documents", "tokens", "supervised", "share", "longest"],
        "rows": rows,
        "figures": [length_figure(corpus), share_figure(corpus)],
        "set_aside_head": ["artifact", "reason", "rows", "share", "first one"],
        "set_aside": [
            [
                row["made"], row["reason"], text.count(row["rows"]),
                text.percent(row["rows"] / row["of"], 1) if row["of"] else text.NONE, row["example"][:EXAMPLE_LENGTH],
            ]
            for row in corpus.set_aside
        ],
    }  # fmt: skip


def _features(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was captured and how it was checked, then the other figures of the capture by name."""
    if not metrics:
        return []
    bytes_, per_token = metrics.get("bytes"), metrics.get("bytes_per_token")
    shown = {
        "documents": text.count(metrics.get("documents")),
        "tokens": text.count(metrics.get("tokens")),
        "bytes": f"{text.count(bytes_)}, {text.number(per_token, 0)} a token",
        "set aside, not finite": text.count(metrics.get("quarantined")),
        "documents computed again": f"{text.count(metrics.get('probe_documents'))} while capturing, "
        f"{text.count(metrics.get('stored_documents_probed'))} read back from the store",
        "largest difference of a row": text.compact(metrics.get("probe_error")),
        "smallest to a neighbouring layer": text.compact(metrics.get("probe_neighbour_error")),
        "head chooses the answer's token": _agreement(metrics, "alignment"),
        "head chooses as on the document alone": _agreement(metrics, "head"),
    }
    known = {
        "documents", "tokens", "bytes", "bytes_per_token", "quarantined", "probe_documents", "stored_documents_probed",
        "probe_error", "probe_neighbour_error",
        *(f"{name}_{part}" for name in ("alignment", "head") for part in ("rows", "share", "near_ties")),
    }  # fmt: skip
    return [*shown.items(), *((k, text.compact(v)) for k, v in sorted(metrics.items()) if k not in known)]


def _agreement(metrics: Mapping[str, Any], name: str) -> str:
    rows = metrics.get(f"{name}_rows")
    if not rows:
        return "no rows to judge"
    share, ties = metrics.get(f"{name}_share"), metrics.get(f"{name}_near_ties")
    return f"{text.percent(share, 2)} of {text.count(rows)} rows, and {text.count(ties)} near ties"


def _conventions(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    groups = ("conventions", "sampling", "template", "dataset", "engine", "drafter", "target", "hardware", "versions")
    found = [(name, result[name]) for name in groups if name in result]
    return [(name, text.compact(value)) for name, value in found] + [("cache", str(result["cache_state"]))]


def _lineage(row: Mapping[str, Any]) -> dict[str, str]:
    inputs = ", ".join(f"{k[:12]} {v[:12]}" for k, v in sorted(row["inputs"].items()))
    return {
        "kind": row["kind"],
        "item": row["item"],
        "key": row["key"][:12],
        "inputs": inputs or text.NONE,
        "parameters": text.compact(row["parameters"]) if row["parameters"] else text.NONE,
    }


def _tree(result: Mapping[str, Any]) -> str:
    """Sentence on the trees; empty for chains."""
    tree = result.get("tree")
    if not tree:
        return ""
    shape = f" Trees of {tree['steps']} steps, topk {tree['topk']}, {tree['num_draft_tokens']} rows"
    chosen = tree.get("chosen")
    if not chosen:
        return f"{shape}."
    return (
        f"{shape}, chosen from measured costs and {chosen['positions']} drafted positions: predicted tau "
        f"{text.number(chosen['best']['tau'])}, {text.times(chosen['gain'])} the speed of the drafter's chain (tau "
        f"{text.number(chosen['chain']['tau'])})."
    )


def _differences(result: Mapping[str, Any]) -> str:
    """Sentence on prompts whose two outputs differ; empty where the benchmark did not compare them."""
    found = result.get("equality")
    if not found:
        return ""
    if not found["differing"]:
        return f" The outputs of all {found['prompts']} prompts are equal."
    gaps = [row["gap"] for row in found["differences"] if row["gap"] is not None]
    largest = f"; largest fp32 logit gap {max(gaps):.3g}" if gaps else ""
    return (
        f" The outputs of {found['differing']} of {found['prompts']} prompts differ, {found['near_ties']} of them "
        f"at a near tie{largest}."
    )
