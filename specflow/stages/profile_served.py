"""``profile`` of a running SGLang server: which server it is, and the rounds that it notes (contract E.2)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from specflow.config.profile import ProfileParams
from specflow.stages.api_key import read_api_key
from specflow.stages.contract import Context, Inputs, StageError

VISITS_FILE = "visits.jsonl"


def timed_rounds(inputs: Inputs, params: ProfileParams, context: Context) -> tuple[Sequence[Any], dict[str, Any]]:
    """Cells, and the conditions they hold for. Raises ``StageError`` on a server that is none for it."""
    from specflow.costs.served_rounds import ServedRounds, splits_of
    from specflow.costs.timing import time_passes
    from specflow.serving.machine import versions
    from specflow.targets.retrying import ServerError

    section, target = params.sglang, inputs.one("target")
    assert section is not None
    config = json.loads((target.path / "config.json").read_text(encoding="utf-8"))
    key = read_api_key(section.api_key_file, option="profile: sglang.api_key_file")
    try:
        served = ServedRounds(
            section.url, context=params.context, samples=params.samples, vocab_size=int(config["vocab_size"]),
            timeout=section.timeout, key=key,
        )  # fmt: skip
        splits = splits_of(params.requests, params.rows, served)
        try:
            with context.progress("rounds of the server", total=len(splits) * params.visits, unit="visits") as progress:
                cells = time_passes(
                    served, splits, visits=params.visits, samples=params.samples, seed=params.seed,
                    kept=context.scratch / VISITS_FILE, on_visit=progress.advance, clock=served.clock,
                )  # fmt: skip
        finally:
            served.close()
    except ServerError as error:
        raise StageError(f"profile: {error}\nFinished visits are kept: run the same command to go on") from error
    engine = {
        "name": "sglang",
        "version": str(served.info.get("version")),
        "mode": served.mode,
        "precision": str(served.info.get("dtype")),
        "device": str(served.info.get("device")),
        "attention_backend": str(served.info.get("attention_backend")),
        "tensor_parallel": served.info.get("tp_size"),
        "proposals": served.num_proposals,
    }
    return cells, {
        "target": target.key,
        "engine": engine,
        "served_model": str(served.info.get("model_path")),
        "context": params.context,
        "splits": "rows as the server spreads them" if len(splits) > len(params.requests) else "all proposals",
        "versions": versions(),
    }
