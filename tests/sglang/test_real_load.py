"""A real server, proved by parity, then under load: it still accepts what the embedded engine accepts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specflow.config.load import LoadParams, MeasureParams
from specflow.config.load_result import LoadResult, Side
from specflow.config.parity import ParityParams
from specflow.serving.load.protocols import Asked
from specflow.serving.load.running import measure_running
from specflow.stages import load, parity
from specflow.stages.contract import Artifact
from specflow.stages.draft_server import draft_serving
from specflow.targets.sglang.process import SglangProcess
from tests.serving.trained import ANSWER, PROMPTS, Trained, make_trained
from tests.sglang.conftest import CPU_FLAGS, START_SECONDS
from tests.sglang.test_real_capture import processes_in
from tests.sglang.test_real_parity import DRAFT_FLAGS
from tests.stages.pipeline_helpers import FakeContext, artifact, inputs

METHOD = "dflash"
FLAGS = (*CPU_FLAGS, *DRAFT_FLAGS[METHOD])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    torch.set_num_threads(1)
    return make_trained(tmp_path_factory.mktemp("load"), METHOD)


@pytest.fixture(scope="module")
def proved(made: Trained, sglang_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    context = FakeContext(tmp_path_factory.mktemp("parity"))
    params = ParityParams.model_validate(
        {
            "sglang": {"python": sglang_python, "launch_flags": FLAGS, "retries": 0, "start_timeout": START_SECONDS},
            "max_new_tokens": ANSWER, "transformers_prompts": 0, "threads": 1,
        }
    )  # fmt: skip
    parity.run(inputs(made.target, made.drafter, made.export, made.tokens), params, context)
    keys = {"export": made.export.key, "target": made.target.key}
    return replace(artifact("parity", context.output), inputs=keys)


def embedded_counts(proved: Artifact) -> list[int]:
    """Rounds by accepted proposals, of the embedded engine."""
    checks = json.loads(proved.file("parity.json").read_text())["checks"]
    return list(next(c for c in checks if c["name"] == "acceptance-by-position")["numbers"]["embedded"])


def test_servers_in_turn_accept_what_the_embedded_engine_accepts(
    made: Trained, proved: Artifact, sglang_python: Path, tmp_path: Path
) -> None:
    context = FakeContext(tmp_path)
    params = LoadParams.model_validate(
        {
            "sglang": {"python": sglang_python, "launch_flags": FLAGS, "retries": 0, "start_timeout": START_SECONDS},
            "concurrency": (1, 2), "requests": PROMPTS, "max_new_tokens": ANSWER, "repeats": 1, "warmup_requests": 1,
            "mix_kinds": True,
        }
    )  # fmt: skip
    load.run(inputs(made.target, made.drafter, made.export, made.tokens, proved), params, context)
    result = LoadResult.model_validate_json((context.output / "load.json").read_text())
    counts = embedded_counts(proved)
    rounds = sum(counts)
    at_least = [sum(counts[j:]) for j in range(1, len(counts))]
    for concurrency in (1, 2):
        sides = [c.drafter for c in result.cells if c.concurrency == concurrency]
        assert sum(_accepted(side)[0] for side in sides) == rounds
        for j, expected in enumerate(at_least, 1):
            assert sum(_accepted(side)[1][j - 1] for side in sides) == expected
    for cell in result.cells:
        assert cell.baseline is not None
        assert cell.drafter is not None
        assert cell.speedup is not None
        assert cell.baseline.tau is None
        assert cell.drafter.tau is not None
        assert cell.drafter.tau > 1.2
        assert cell.drafter.tokens == cell.baseline.tokens  # greedy: the same answers
        assert cell.drafter.cached_share == 0.0
        assert cell.drafter.per_token is not None
        assert cell.drafter.between_tokens is not None
    assert not result.unproven
    assert [s.started for s in result.servers] == ["here", "here"]
    assert not processes_in(context.scratch)


def _accepted(side: Side | None) -> tuple[int, list[int]]:
    """Rounds, and rounds that accept each position."""
    assert side is not None
    assert side.rounds is not None
    assert side.acceptance is not None
    return side.rounds, side.acceptance.accepted


def test_the_chat_protocol_of_the_same_server_counts_alike(made: Trained, sglang_python: Path, tmp_path: Path) -> None:
    context = FakeContext(tmp_path)
    section = LoadParams.model_validate({"sglang": {"python": sglang_python, "launch_flags": FLAGS}}).sglang
    serving = draft_serving(section, inputs(made.target, made.drafter, made.export), stage="load")
    asked = [Asked(id=f"p{i}", kind="chat", messages=({"role": "user", "content": "one two"},)) for i in range(3)]
    log = context.scratch / "sglang.log"
    with SglangProcess(sglang_python, serving.arguments, log=log, start_timeout=START_SECONDS) as process:
        params = MeasureParams.model_validate(
            {"url": process.url, "concurrency": (1, 2), "max_new_tokens": ANSWER, "repeats": 1, "warmup_requests": 1}
        )
        result = measure_running(params, asked, api_key=None, kept=context.scratch / "blocks.jsonl")
    assert result.error is None
    assert result.servers[0].engine == "sglang"
    for cell in result.cells:
        side = cell.drafter
        assert side is not None
        assert side.tau is not None
        assert side.rounds is not None
        assert side.acceptance is not None
        # Tokens after the first of each answer come from rounds, unless an end or the length cut the last.
        committed = side.rounds + sum(side.acceptance.accepted)
        assert side.tokens - side.requests <= committed <= side.tokens - side.requests + 3 * side.requests
        assert side.between_tokens is not None
        assert side.cached_share is None  # over chat, SGLang tells it with --enable-cache-report only
