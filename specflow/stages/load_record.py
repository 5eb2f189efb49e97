"""The record of ``load``: figures, and everything a reader must know to compare them with others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from specflow.config.load import LoadParams
from specflow.stages.contract import Inputs

if TYPE_CHECKING:
    from specflow.config.load_result import LoadResult, ServerRecord
    from specflow.serving.load.cells import Cell
    from specflow.serving.load.samples import Block
    from specflow.serving.requests import Request
    from specflow.stages.load_servers import StageServers

ENGINE = "sglang"


def load_result(
    inputs: Inputs,
    params: LoadParams,
    *,
    requests: Sequence[Request],
    cells: Sequence[Cell],
    blocks: Sequence[Block],
    servers: StageServers,
    proof: Mapping[str, Any] | None,
    cross_check: dict[str, Any] | None = None,
) -> LoadResult:
    """``proof``: the record of parity."""
    from specflow.config.load_result import LoadResult
    from specflow.drafters.loading import read_manifest
    from specflow.serving.load import record
    from specflow.serving.load.figures import break_even
    from specflow.serving.machine import hardware, versions
    from specflow.serving.requests import requests_hash

    drafter = inputs.one("drafter")
    manifest = read_manifest(drafter.path)
    lengths = record.DraftLengths(block_size=manifest.block_size, num_proposals=manifest.num_proposals)
    found = record.cell_records(cells, blocks, seed=params.seed, lengths=lengths)
    stated = {mode: servers.stated(mode) for mode in servers.planned}
    running = {mode: said.get("max_running_requests") for mode, said in stated.items()}
    return LoadResult(
        complete=True,
        conventions=record.CONVENTIONS,
        cells=found,
        break_even=break_even(found),
        sampling={name: sampling.model_dump() for name, sampling in params.sampling.items()},
        cache_state=record.CACHE_STATES[params.cache],
        alternation=servers.alternation,
        dataset={"sha256": requests_hash(requests), "prompts": len(requests)},
        conditions=record.conditions_of(params),
        servers=[
            _server("plain", stated["plain"], servers, started=params.sglang.url is None),
            _server("drafter", stated["drafter"], servers, started=params.sglang.url is None),
        ],
        parity=None if proof is None else {"key": proof["key"], "precision": proof["precision"]},
        unproven=proof is None or params.unproven,
        drafter={
            "name": drafter.item or drafter.key[:12],
            "key": drafter.key,
            "method": manifest.method,
            "export": inputs.one("export").key,
        },
        target=json.loads(inputs.one("target").file("fingerprint.json").read_text(encoding="utf-8")),
        hardware=hardware(threads=1),
        versions=versions(),
        cross_check=cross_check,
        notes=[*record.notes_of(found, running=running), *record.settings_notes(stated["drafter"])],
    )


def _server(
    mode: Literal["plain", "drafter"], stated: Mapping[str, Any], servers: StageServers, *, started: bool
) -> ServerRecord:
    from specflow.config.load_result import ServerRecord
    from specflow.targets.sglang.launching import shell

    return ServerRecord(
        mode=mode,
        engine=ENGINE,
        version=str(stated["version"]),
        started="here" if started else "running already",
        settings={name: value for name, value in stated.items() if name != "version"},
        command=shell(servers.planned[mode].arguments) if started else None,
    )
