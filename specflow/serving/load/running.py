"""A benchmark of servers that run already: any that speak the OpenAI protocol."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from specflow.config.inputs import InputParams, PromptSource
from specflow.config.load import MeasureParams
from specflow.config.load_result import LoadResult, ServerRecord
from specflow.serving.load import record
from specflow.serving.load.arrivals import read_trace
from specflow.serving.load.cells import cells_of, visits
from specflow.serving.load.figures import DRAFTER, PLAIN, break_even
from specflow.serving.load.generator import Conditions, Endpoint
from specflow.serving.load.matrix import kept_blocks, measure
from specflow.serving.load.open_server import Opened, open_server
from specflow.serving.load.protocols import Asked
from specflow.serving.load.samples import Block
from specflow.serving.machine import hardware, versions
from specflow.targets.retrying import ServerError

BY_A_LINE = "no request shares a prefix with another: a line of its own stands before every prompt"


def read_asked(sources: Sequence[tuple[str, Path]], folder: Path) -> list[Asked]:
    """Prompts of files by kind, in any form that ``docs/data.md`` names; ``folder`` is for intermediate files.

    Raises :class:`specflow.data.quarantine.DataError` where a file has none.
    """
    from specflow.data.inputs.prepare import prepare

    given = [PromptSource(path=path, kind=kind) for kind, path in sources]
    made = prepare(given, [], InputParams(workers=1), folder=folder)
    made.refuse_empty()
    return [
        Asked(id=prompt.id, kind=prompt.kind, messages=tuple(prompt.messages), tools=tuple(prompt.tools or ()))
        for prompt in made.rows()
    ]


def measure_running(
    params: MeasureParams,
    asked: Sequence[Asked],
    *,
    api_key: str | None,
    kept: Path,
    on_block: Callable[[Block], None] = lambda block: None,
) -> LoadResult:
    """The record; incomplete, with the reason, where a server failed on the way.

    The server at ``url`` is that with the drafter. Raises :class:`ServerError` where one cannot be opened.
    """
    urls = {PLAIN: params.baseline_url, DRAFTER: params.url}
    servers = _Running(
        {
            mode: open_server(url, model=params.model, api_key=api_key, timeout=params.timeout)
            for mode, url in urls.items()
            if url is not None
        }
    )
    cells = cells_of(params, asked, read_trace(params.trace) if params.trace else ())
    order = list(visits(cells, tuple(servers.opened), repeats=params.repeats, together=True))
    conditions = Conditions(
        max_new_tokens=params.max_new_tokens, cache=params.cache, warmup_requests=params.warmup_requests
    )
    error = None
    try:
        blocks = measure(order, servers, conditions, kept=kept, max_failures=params.max_failures, on_block=on_block)
    except ServerError as problem:
        error, blocks = str(problem), kept_blocks(kept, order)
    found = record.cell_records(cells, blocks, seed=params.seed, lengths=record.DraftLengths())
    info: Mapping[str, Mapping[str, object]] = {mode: opened.info or {} for mode, opened in servers.opened.items()}
    limits = {mode: said.get("max_running_requests") for mode, said in info.items()}
    running = {mode: limit if isinstance(limit, int) else None for mode, limit in limits.items()}
    return LoadResult(
        complete=error is None,
        error=error,
        conventions=record.CONVENTIONS,
        cells=found,
        break_even=break_even(found),
        sampling={name: sampling.model_dump() for name, sampling in params.sampling.items()},
        cache_state=_cache_state(params, servers.opened[DRAFTER]),
        alternation="both servers are up; they take turns cell by cell, and who begins is swapped every time"
        if params.baseline_url
        else "one server only: no baseline, no speed-up",
        dataset={"sha256": _hash(asked), "prompts": len(asked)},
        conditions=record.conditions_of(params),
        servers=[_server(mode, opened) for mode, opened in servers.opened.items()],
        parity=None,
        unproven=True,
        drafter=None,
        target=None,
        hardware=hardware(threads=1),
        versions=versions(),
        notes=[*record.notes_of(found, running=running), *record.settings_notes(info[DRAFTER])],
    )


class _Running:
    """See ``specflow.serving.load.matrix.Servers``."""

    def __init__(self, opened: Mapping[str, Opened]) -> None:
        self.opened = opened

    @contextmanager
    def endpoint(self, mode: str, *, repeat: int) -> Iterator[Endpoint]:
        yield self.opened[mode].endpoint


def _cache_state(params: MeasureParams, opened: Opened) -> str:
    if opened.info is not None:
        return record.CACHE_STATES[params.cache]
    # Nothing of the OpenAI protocol empties a cache.
    return BY_A_LINE if params.cache == "cold" else f"{params.cache}, as far as this server lets it be known"


def _server(mode: str, opened: Opened) -> ServerRecord:
    info = opened.info or {}
    return ServerRecord(
        mode="drafter" if mode == DRAFTER else "plain",
        engine="sglang" if opened.info else "OpenAI protocol",
        version=str(info["version"]) if info.get("version") else None,
        started="running already",
        settings={**record.stated_settings(info), "url": opened.endpoint.url, "models": list(opened.models)},
    )


def _hash(asked: Sequence[Asked]) -> str:
    """Names the data set."""
    rows = [[a.id, a.kind, list(a.messages), list(a.tools)] for a in asked]
    return hashlib.sha256(json.dumps(rows, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()
