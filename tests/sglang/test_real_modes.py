"""A confidence head behind a real server: mode ``cap-accept`` accepts what the embedded scheduler would verify, and a
server that notes its rounds tells what they cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch

from specflow.calibration.sglang_sts import read_sts
from specflow.config.export import ExportParams
from specflow.config.scheduler import SchedulerParams
from specflow.costs.served_rounds import ServedRounds, splits_of
from specflow.costs.tables import AdditiveTable
from specflow.costs.timing import time_passes
from specflow.data.documents import iterate_documents
from specflow.decoding.plain import decode_plain
from specflow.decoding.speculative import decode_speculative
from specflow.drafters.loading import load_drafter
from specflow.scheduling.scheduler import Scheduler
from specflow.serving.requests import Request, heldout_requests
from specflow.serving.serving import plan_serving
from specflow.serving.verification.answers import histogram, served_answer
from specflow.stages import export
from specflow.targets.retrying import Retrying
from specflow.targets.sglang.client import SglangClient
from specflow.targets.sglang.process import SglangProcess
from specflow.targets.target import Target
from tests.serving.trained import ANSWER, Trained, make_trained
from tests.sglang.conftest import CPU_FLAGS, START_SECONDS
from tests.sglang.test_real_parity import NO_FLASH
from tests.stages.pipeline_helpers import FakeContext, artifact, inputs
from tests.stages.test_export_extras import calibration, costs

M = 4
TABLE = AdditiveTable(
    bias_seconds=0.010, requests=(1, 4), alpha_seconds=(0.0, 0.01),
    rows=(1, 2, 3, 4, 5, 20), theta_seconds=(0.0, 0.002, 0.0046, 0.0075, 0.0115, 0.16),
)  # fmt: skip
"""Certain proposals all pay, so that a first round is whole by both engines' rules; of this drafter's some do."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The export has temperatures and costs beside it."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("modes")
    trained = make_trained(root, "dspark")
    context = FakeContext(root / "scheduled")
    given = inputs(trained.target, trained.drafter, calibration(root / "cal", M), costs(root / "costs", TABLE))
    export.run(given, ExportParams(dtype="float32"), context)
    return replace(trained, export=artifact("export", context.output))


@contextmanager
def server(made: Trained, python: Path, root: Path, *, mode: str, **variables: str) -> Iterator[SglangProcess]:
    serving = plan_serving(
        made.export.path, made.target.path, mode=mode, further=(*CPU_FLAGS, *NO_FLASH), environment=variables
    )
    with SglangProcess(
        python, serving.arguments, log=root / "sglang.log", start_timeout=START_SECONDS, environment=serving.environment
    ) as process:
        yield process


def test_cap_accept_accepts_what_the_embedded_scheduler_verifies(
    made: Trained, sglang_python: Path, tmp_path: Path
) -> None:
    """One prompt at a time, the budget from the confidence of two rounds ago alone, as SGLang forms it."""
    target = Target.load(made.target.path, precision="fp32", threads=1)
    requests = heldout_requests(iterate_documents(made.tokens.path))
    scheduler = Scheduler(
        params=SchedulerParams(mode="lagged", lag=2, evidence=1, explore=None),
        num_proposals=M,
        cost=TABLE,
        temperatures=read_sts(made.export.path / "draft/sts.json").temperatures,
    )
    proposer = load_drafter(made.drafter.path, target)
    embedded = [
        decode_speculative(target, proposer, r.prompt, max_new_tokens=ANSWER, scheduler=scheduler) for r in requests
    ]
    whole = [decode_speculative(target, proposer, r.prompt, max_new_tokens=ANSWER) for r in requests]
    with server(made, sglang_python, tmp_path, mode="cap-accept") as process:
        replies = asked(process.url, requests, target)
    for request, reply, found in zip(requests, replies, embedded, strict=True):
        answer = served_answer(reply)
        plain = decode_plain(target, [request.prompt], max_new_tokens=ANSWER)[0]
        assert list(answer.tokens) == plain.tokens == found.tokens
        assert answer.accepted == histogram(r.accepted for r in found.rounds)
        # Rows of a round, the anchor's included.
        granted = histogram(r.judged + 1 for r in found.rounds)
        assert tuple(reply["meta_info"]["spec_cap_lens_histogram"])[: len(granted)] == granted
    rows = {r.judged for g in embedded for r in g.rounds}
    assert len(rows) > 2, "nothing was cut, or everything alike"
    assert [len(g.rounds) for g in embedded] != [len(g.rounds) for g in whole], "no cut cost an accepted proposal"


def asked(url: str, requests: list[Request], target: Target) -> list[dict[str, Any]]:
    async def all_of_them() -> list[dict[str, Any]]:
        retrying = Retrying(retries=0, backoff=1.0)
        async with SglangClient(url, api_key=None, retrying=retrying, timeout=300, concurrency=1) as client:
            return [
                await client.greedy(list(r.prompt), max_new_tokens=ANSWER, end_ids=target.end_ids) for r in requests
            ]

    return asyncio.run(all_of_them())


def test_its_rounds_are_timed_by_its_own_record(made: Trained, sglang_python: Path, tmp_path: Path) -> None:
    """The tiny target's rounds cost the host's time whatever their rows are, so no table is asked of them."""
    recording = {"SGLANG_DSPARK_ENABLE_SPS_RECORD": "1", "SGLANG_SIMULATE_ACC_LEN": "1.0"}
    with server(made, sglang_python, tmp_path, mode="static", **recording) as process:
        served = ServedRounds(process.url, context=8, samples=20, vocab_size=256, timeout=300)
        splits = splits_of((1, 4), (1, 2), served)
        begin = perf_counter()
        cells = time_passes(served, splits, visits=1, samples=20, seed=0, clock=served.clock)
        took = perf_counter() - begin
        served.close()
    assert (served.mode, served.num_proposals, served.info["version"]) == ("static", M, "0.5.23")
    assert [cell.split for cell in cells] == [(M + 1,), (M + 1,) * 4]
    seconds = [second for cell in cells for second in cell.seconds]
    assert len(seconds) == 40
    assert len({*seconds}) > 30
    assert 0.0 < sum(seconds) < took
