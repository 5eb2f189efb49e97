"""``profile``: what a pass of the embedded engine, or a round of a server, costs by requests and rows, as tables for a
scheduler.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specflow.config.profile import ProfileParams
from specflow.stages.contract import Arity, Context, Estimate, Inputs, Metrics, Problem, StageError
from specflow.stages.profile_served import VISITS_FILE, timed_rounds

NAME = "profile"
KIND = "costs"
INPUTS: Mapping[str, Arity] = {"target": Arity.ONE}
RECORD_FILE, ADDITIVE_FILE, ROWS_FILE, PLOT_FILE = "costs.json", "sps_additive.json", "sps.json", "costs.png"
MEASURES = "one target pass with the head over every row; no drafting, no sampling"
SERVED_MEASURES = "a whole round of the server: drafting, the target's pass, acceptance and its own bookkeeping"


def check(params: ProfileParams) -> Iterable[Problem]:
    return ()


def files(params: ProfileParams) -> Iterable[Path]:
    return ()


def estimate(params: ProfileParams) -> Estimate:
    if params.sglang is not None:
        return Estimate(bytes=500_000, note=f"rounds of the server, {params.visits} visits to each shape")
    shapes = len(_splits(params))
    passes = shapes * params.visits * (params.samples + 1)
    return Estimate(bytes=500_000, note=f"{passes} passes of {shapes} shapes")


def run(inputs: Inputs, params: ProfileParams, context: Context) -> Metrics:
    """Payload: ``costs.json`` (conditions, every timing, how well the tables fit), ``sps_additive.json`` and
    ``sps.json`` (as SGLang reads them), ``costs.png``.

    ``sps_additive.json`` is missing where all requests had the same rows: what a request costs is not known then.
    Raises ``StageError`` on timings that are too noisy, flat, or do not grow with rows; on a server that tells none.
    """
    from specflow.costs.checks import CostError, check_cells, noise_of, spread_of
    from specflow.costs.fit import fit_rows, misses
    from specflow.costs.sglang_tables import table_as_json, write_table
    from specflow.reporting.cost_plot import write_cost_plot

    timed = _timed if params.sglang is None else timed_rounds
    cells, conditions = timed(inputs, params, context)
    try:
        check_cells(cells)
    except CostError as error:
        # Else the next run would go on from these and be refused again.
        (context.scratch / VISITS_FILE).unlink(missing_ok=True)
        raise StageError("these timings make no cost table:\n" + "\n".join(error.problems)) from error
    additive, by_rows = _additive(cells), fit_rows(cells)
    tables = {"rows": by_rows} if additive is None else {"additive": additive, "rows": by_rows}
    missed = {name: abs(misses(table, cells)) for name, table in tables.items()}
    record = {
        "format": 1,
        "measures": MEASURES if params.sglang is None else SERVED_MEASURES,
        "conditions": conditions,
        "noise": noise_of(cells),
        "spread": spread_of(cells),
        "misses": {name: {"median": _median(m), "largest": float(m.max())} for name, m in missed.items()},
        "tables": {name: table_as_json(table) for name, table in tables.items()},
        "cells": [cell.as_json() for cell in cells],
    }
    text = json.dumps(record, indent=2, sort_keys=True, allow_nan=False) + "\n"
    (context.output / RECORD_FILE).write_text(text, encoding="utf-8")
    if additive is not None:
        write_table(context.output / ADDITIVE_FILE, additive)
    write_table(context.output / ROWS_FILE, by_rows)
    write_cost_plot(cells, additive, by_rows, context.output / PLOT_FILE)
    context.log(_sentence(cells, record))
    return {
        "noise": record["noise"],
        "spread": record["spread"],
        "precision": conditions["engine"]["precision"],
        "largest_miss": float(next(iter(missed.values())).max()),
    }


def _additive(cells: Sequence[Any]) -> Any:
    """None where every request of every pass had the same rows."""
    from specflow.costs.fit import fit_additive

    return fit_additive(cells) if len({cell.rows / cell.requests for cell in cells}) > 1 else None


def _splits(params: ProfileParams) -> list[tuple[int, ...]]:
    """Rows of each request, of every shape: the same for all, then ``uneven`` ones between them."""
    from specflow.costs.cells import uneven_splits

    splits = [(rows,) * requests for requests in params.requests for rows in params.rows]
    if params.uneven:
        most, between = params.rows[-1], (1.5, 0.5 * (1 + params.rows[-1]))
        splits += [
            split
            for requests in params.requests
            for share in between
            if requests > 1 and requests < int(share * requests) <= most * requests
            for split in uneven_splits(requests, int(share * requests), most=most)
        ]
    return list(dict.fromkeys(splits))


def _timed(inputs: Inputs, params: ProfileParams, context: Context) -> tuple[Sequence[Any], dict[str, Any]]:
    from specflow.costs.contexts import spread_contexts
    from specflow.costs.target_passes import TargetPasses
    from specflow.costs.timing import time_passes
    from specflow.serving.machine import hardware, versions
    from specflow.stages.machine import resolved
    from specflow.targets.target import Target

    path = inputs.one("target").path
    precision, threads = resolved(context.scratch, path, precision=params.precision, threads=params.threads)
    target = Target.load(path, precision=precision, threads=threads)
    contexts = spread_contexts(params.context, params.requests[-1], spread=params.spread)
    passes = TargetPasses(target, contexts=contexts, most_rows=params.rows[-1])
    splits = _splits(params)
    with context.progress("timing target passes", total=len(splits) * params.visits, unit="visits") as progress:
        cells = time_passes(
            passes,
            splits,
            visits=params.visits,
            samples=params.samples,
            seed=params.seed,
            kept=context.scratch / VISITS_FILE,
            on_visit=progress.advance,
        )
    conditions = {
        "target": inputs.one("target").key,
        "engine": {"name": "embedded", "precision": target.precision, "threads": target.threads, "device": "cpu"},
        "context": params.context,
        "spread": params.spread,
        "splits": "the same rows for every request" + (", and uneven ones" if params.uneven else ""),
        "hardware": hardware(threads=target.threads),
        "versions": versions(),
    }
    return cells, conditions


def _median(values: Any) -> float:
    return float(sorted(values)[len(values) // 2])


def _sentence(cells: Sequence[Any], record: Mapping[str, Any]) -> str:
    cheapest, dearest = min(cells, key=lambda c: c.median), max(cells, key=lambda c: c.median)
    table, missed = next(iter(record["misses"].items()))
    return (
        f"a pass costs {1e3 * cheapest.median:.2f} ms ({cheapest.requests} requests, {cheapest.rows} rows) to "
        f"{1e3 * dearest.median:.2f} ms ({dearest.requests}, {dearest.rows}); noise {record['noise']:.1%}; "
        f"the table ({table}) misses by {missed['median']:.1%}, at most {missed['largest']:.1%}"
    )
