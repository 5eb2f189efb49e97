"""``load``: a server with the drafter and one without, under closed and open loops, in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.config.load import LoadParams
from specflow.stages.contract import Arity, Context, Estimate, Inputs, Metrics, Problem

if TYPE_CHECKING:
    from specflow.config.load_result import LoadResult
    from specflow.serving.load.cells import Cell
    from specflow.serving.load.samples import Block
    from specflow.stages.load_servers import StageServers

NAME = "load"
KIND = "load"
INPUTS: Mapping[str, Arity] = {
    "target": Arity.ONE,
    "drafter": Arity.ONE,
    "export": Arity.ONE,
    "parity": Arity.OPTIONAL,
    "tokens": Arity.ONE,
}
RECORD, TABLE, BLOCKS = "load.json", "load.csv", "blocks.jsonl"


def check(params: LoadParams) -> Iterable[Problem]:
    from specflow.serving.load.arrivals import read_trace
    from specflow.stages.sglang_section import check_section

    yield from check_section(params.sglang)
    if (params.sglang.url is None) != (params.baseline.url is None):
        yield Problem(
            where="baseline.url",
            found="only one of sglang.url and baseline.url",
            expected="both, or neither: without a baseline in the same run there is no speed-up",
        )
    if params.baseline.url is not None and params.baseline.launch_flags:
        flags = " ".join(params.baseline.launch_flags)
        yield Problem(where="baseline.launch_flags", found=flags, expected="none: the server at baseline.url runs")
    if params.cross_check and params.sglang.python is None:
        yield Problem(where="cross_check", found="true", expected="sglang.python: SGLang's own tool is run with it")
    if params.trace is not None and params.trace.is_file():
        try:
            read_trace(params.trace)
        except ValueError as error:
            yield Problem(where="trace", found=str(error), expected='lines {"seconds": s}, s rising')


def files(params: LoadParams) -> Iterable[Path]:
    return () if params.trace is None else (params.trace,)


def estimate(params: LoadParams) -> Estimate:
    loads = len(params.concurrency) + len(params.rates) + (params.trace is not None)
    blocks = loads * len(params.sampling) * params.repeats
    return Estimate(note=f"{blocks} blocks for each kind of prompt and each of two servers")


def run(inputs: Inputs, params: LoadParams, context: Context) -> Metrics:
    """Payload: ``load.json``, ``load.csv`` and ``blocks.jsonl`` (every request with its arrivals and counts).

    Raises ``StageError`` without a proof of parity, where a server is not what it must be or is gone, and where more
    requests fail than may.
    """
    from specflow.data.documents import iterate_documents
    from specflow.serving.load.arrivals import read_trace
    from specflow.serving.load.cells import cells_of, visits
    from specflow.serving.load.generator import Conditions
    from specflow.serving.load.matrix import measure
    from specflow.serving.load.protocols import Asked
    from specflow.serving.load.tables import table, write_csv
    from specflow.serving.requests import heldout_requests
    from specflow.stages.fitting import same_contracts
    from specflow.stages.load_gate import proof_of, require_proved
    from specflow.stages.load_record import load_result
    from specflow.stages.load_servers import StageServers, require_same_as_before, require_settings
    from specflow.targets.target import end_ids_of

    proof = proof_of(inputs, unproven=params.unproven)
    same_contracts(inputs, context)
    requests = heldout_requests(iterate_documents(inputs.one("tokens").path), per_kind=params.prompts_per_kind)
    asked = [Asked(id=r.id, kind=r.kind, ids=r.prompt) for r in requests]
    cells = cells_of(params, asked, read_trace(params.trace) if params.trace else ())

    def look(mode: str, server: Any) -> None:
        require_settings(mode, server)
        if mode == "drafter" and not params.unproven:
            require_proved(proof, server)
        require_same_as_before(mode, server, context.scratch)

    ends = sorted(end_ids_of(inputs.one("target").path))
    with StageServers(params, inputs, context, end_ids=ends, on_server=look) as servers:
        order = list(visits(cells, tuple(servers.planned), repeats=params.repeats, together=servers.together))
        with context.progress("servers in turn", total=len(order), unit="blocks") as progress:
            blocks = measure(
                order,
                servers,
                Conditions(
                    max_new_tokens=params.max_new_tokens, cache=params.cache, warmup_requests=params.warmup_requests
                ),
                kept=context.scratch / BLOCKS,
                max_failures=params.max_failures,
                judge=_judge(params),
                on_block=lambda block: progress.advance(),
            )
        checked = _cross_check(inputs, params, context, cells, servers) if params.cross_check else None
        result = load_result(
            inputs,
            params,
            requests=requests,
            cells=cells,
            blocks=blocks,
            servers=servers,
            proof=proof,
            cross_check=checked,
        )
    (context.output / RECORD).write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
    write_csv(result, context.output / TABLE)
    (context.output / BLOCKS).write_bytes((context.scratch / BLOCKS).read_bytes())
    context.log(table(result))
    for line in (*(f"{b.dataset}, {b.sampling}: {b.says}" for b in result.break_even), *result.notes):
        context.log(line)
    return _metrics(result)


def _cross_check(
    inputs: Inputs, params: LoadParams, context: Context, cells: Sequence[Cell], servers: StageServers
) -> dict[str, Any] | None:
    """SGLang's own tool on one cell, once; none where nothing is a closed loop."""
    from transformers import AutoTokenizer

    from specflow.serving.load.cross_check import cross_check, largest_closed
    from specflow.stages.machine import remembered

    cell, python = largest_closed(cells), params.sglang.python
    if cell is None or python is None:
        return None
    target = inputs.one("target").path.resolve()

    def measure() -> dict[str, Any]:
        tokenizer = AutoTokenizer.from_pretrained(target)
        with servers.endpoint("drafter", repeat=0) as endpoint:
            return cross_check(
                python.absolute(),
                endpoint.url,
                cell,
                target=target,
                text_of=tokenizer.decode,
                limit=params.max_new_tokens,
                folder=context.scratch,
                timeout=params.sglang.timeout * len(cell.asked),
            )

    found: dict[str, Any] = remembered(context.scratch, "cross_check", measure)
    context.log(f"{found['tool']}, {found['cell']}: {found['figures']}")
    return found


def _judge(params: LoadParams) -> Callable[[Block], str | None]:
    """Why a block is no measurement of its mode."""

    def judge(block: Block) -> str | None:
        counts = [s.counters for s in block.samples]
        speculates = any(c.rounds for c in counts)
        if block.mode == "drafter" and not speculates and any(c.tokens > 1 for c in counts):
            return "the server counts no rounds: it does not speculate"
        if block.mode == "plain" and speculates:
            return "the server counts rounds: it speculates, and is no baseline"
        cached = sum(c.cached_tokens or 0 for c in counts)
        if params.cache == "cold" and cached:
            return f"load.cache is cold, and {cached} prompt tokens were in the server's prefix cache"
        return None

    return judge


def _metrics(result: LoadResult) -> dict[str, Any]:
    return {
        "cells": {
            f"{c.dataset}, {c.sampling}, {c.load}": {
                "plain_tokens_per_second": c.baseline.tokens_per_second if c.baseline else None,
                "drafter_tokens_per_second": c.drafter.tokens_per_second if c.drafter else None,
                "speedup": c.speedup.ratio if c.speedup else None,
                "tau": c.drafter.tau if c.drafter else None,
            }
            for c in result.cells
        },
        "unproven": result.unproven,
    }
