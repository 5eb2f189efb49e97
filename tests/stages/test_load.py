"""The load stage against servers whose streams are scripts: the gate, the record, resuming, and what is refused."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specflow.config.export import ExportParams
from specflow.config.load import LoadParams
from specflow.config.load_result import LoadResult
from specflow.config.schema import config_schema
from specflow.reporting.served import served_section
from specflow.stages import export, load
from specflow.stages.contract import Artifact, StageError
from tests.serving.canned import CannedServer, generated
from tests.serving.helpers import BLOCK, Pipeline, make_pipeline
from tests.serving.virtual_time import Script
from tests.stages.pipeline_helpers import FakeContext, artifact, inputs

ROUNDS: dict[str, Any] = {
    "spec_verify_ct": 3, "spec_num_correct_drafts": 4, "spec_num_proposed_drafts": 9,
    "spec_correct_drafts_histogram": [1, 1, 0, 1],
}  # fmt: skip
"""Of an answer of eight tokens: one from prefill, then 1 + 2 + 4."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pipeline, Artifact]:
    root = tmp_path_factory.mktemp("load")
    pipeline = make_pipeline(root)
    context = FakeContext(root / "export")
    export.run(inputs(pipeline.target, pipeline.drafter), ExportParams(dtype="float32"), context)
    return pipeline, artifact("export", context.output)


Made = tuple[Pipeline, Artifact]


def info(made: Made, *, drafting: bool, **more: Any) -> dict[str, Any]:
    pipeline, exported = made
    said = {
        "version": "0.5.23", "dtype": "float32", "model_path": str(pipeline.target.path.resolve()),
        "speculative_algorithm": None, "max_running_requests": 48, "random_seed": 5,
    }  # fmt: skip
    if drafting:
        said |= {
            "speculative_algorithm": "DFLASH",
            "speculative_draft_model_path": str(exported.file("draft").resolve()),
            "speculative_num_draft_tokens": BLOCK,
        }
    return said | more


def server(made: Made, *, drafting: bool, said: dict[str, Any] | None = None, **named: Any) -> CannedServer:
    """The drafting one sends an answer in a third of the time."""
    script = generated(8, every=0.002, **ROUNDS) if drafting else generated(8, every=0.006)
    model = {"model_path": str(made[0].target.path), "architectures": ["LlamaForCausalLM"]}
    answer = named.pop("answer", lambda n, body: script)
    return CannedServer(answer, info=info(made, drafting=drafting, **(said or {})), model=model, **named)


@contextmanager
def pair(made: Made, **drafter: Any) -> Iterator[tuple[CannedServer, CannedServer]]:
    with server(made, drafting=False) as plain, server(made, drafting=True, **drafter) as drafting:
        yield plain, drafting


def proof(made: Made, root: Path, **changes: Any) -> Artifact:
    """What a parity run leaves."""
    pipeline, exported = made
    names = ("model_path", "dtype", "speculative_algorithm", "speculative_num_draft_tokens")
    settings = {name: str(info(made, drafting=True)[name]) for name in names}
    settings |= {"speculative_draft_model_path": str(exported.file("draft").resolve())}
    record = {"engine": {"name": "sglang", "version": "0.5.23", "settings": settings}, "precision": "fp32", **changes}
    root.mkdir(parents=True, exist_ok=True)
    (root / "parity.json").write_text(json.dumps(record))
    keys = {"export": exported.key, "target": pipeline.target.key}
    return replace(artifact("parity", root), inputs=keys)


def params(plain: CannedServer, drafting: CannedServer, **values: Any) -> LoadParams:
    return LoadParams.model_validate(
        {
            "sglang": {"url": drafting.url, "retries": 0},
            "baseline": {"url": plain.url},
            "concurrency": (1, 2),
            "max_new_tokens": 8,
            "repeats": 2,
            "prompts_per_kind": 2,
            "warmup_requests": 1,
            **values,
        }
    )


def run(made: Made, context: FakeContext, given: LoadParams, *proofs: Artifact) -> LoadResult:
    pipeline, exported = made
    load.run(inputs(pipeline.target, pipeline.drafter, exported, pipeline.tokens, *proofs), given, context)
    return LoadResult.model_validate_json((context.output / "load.json").read_text())


def test_the_record_says_everything(made: Made, tmp_path: Path) -> None:
    context = FakeContext(tmp_path)
    with pair(made) as (plain, drafting):
        result = run(made, context, params(plain, drafting), proof(made, tmp_path / "parity"))
    kinds = sorted({c.dataset for c in result.cells})
    assert [(c.dataset, c.concurrency) for c in result.cells] == [(k, n) for k in kinds for n in (1, 2)]
    for cell in result.cells:
        assert cell.baseline is not None
        assert cell.drafter is not None
        assert cell.speedup is not None
        assert cell.baseline.tau is None
        assert cell.baseline.acceptance is None
        assert cell.drafter.tau == 7 / 3
        assert cell.drafter.tokens_per_round == 8 / 3
        assert cell.drafter.acceptance is not None
        assert cell.drafter.acceptance.cumulative == [2 / 3, 1 / 3, 1 / 3]
        assert cell.drafter.lengths is not None
        assert cell.drafter.lengths.block_size == BLOCK
        assert cell.drafter.lengths.verify_len == 4.0
        assert cell.drafter.lengths.commit_len == pytest.approx(7 / 3)
        assert cell.drafter.cached_share == 0.0
        # Of what was measured: how quick this machine was just now is no property of the stage.
        by_request = cell.drafter.tokens_per_request_second / cell.baseline.tokens_per_request_second
        assert cell.speedup.ratio == pytest.approx(by_request)
        by_the_clock = cell.drafter.tokens_per_second / cell.baseline.tokens_per_second
        assert cell.speedup.by_the_clock == pytest.approx(by_the_clock)
        assert cell.drafter.requests == cell.baseline.requests
    assert result.complete
    assert not result.unproven
    assert result.parity == {"key": "p" * 64, "precision": "fp32"}
    assert [s.mode for s in result.servers] == ["plain", "drafter"]
    assert result.servers[1].settings["speculative_num_draft_tokens"] == BLOCK
    assert "random_seed" not in result.servers[1].settings
    faster = all(cell.speedup and cell.speedup.ratio > 1 for cell in result.cells if cell.dataset == kinds[0])
    assert (result.break_even[0].says == "faster at every measured concurrency, up to 2") == faster
    assert "no request shares a prefix" in result.cache_state
    with (context.output / "load.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * len(result.cells)
    assert rows[1]["server"] == "drafter"
    assert float(rows[1]["tau"]) == 7 / 3
    assert float(rows[1]["acceptance.cumulative.2"]) == 1 / 3
    blocks = [json.loads(line) for line in (context.output / "blocks.jsonl").read_text().splitlines()]
    assert len(blocks) == 2 * 2 * len(result.cells)
    section = served_section(json.loads(result.model_dump_json()), prefix="x-")
    assert len(section["rows"]) == 2 * len(result.cells)
    assert section["figures"][0].id == "x-served"
    # Every request had a cache key of its own, and nobody was told to ignore end tokens.
    keys = [body["extra_key"] for body in drafting.bodies]
    assert len(set(keys)) == len(keys)
    assert all(set(b["sampling_params"]) == {"temperature", "max_new_tokens", "stop_token_ids"} for b in plain.bodies)


def test_the_schema_is_published_and_the_record_has_its_form() -> None:
    schema = config_schema("load-result")
    assert schema["additionalProperties"] is False
    assert "per_token" in schema["$defs"]["Side"]["properties"]


def test_without_a_proof_nothing_is_measured_unless_it_is_asked_for_by_name(made: Made, tmp_path: Path) -> None:
    with pair(made) as (plain, drafting):
        with pytest.raises(StageError, match=r"no parity run has proved this export(?s:.)*--unproven"):
            run(made, FakeContext(tmp_path / "a"), params(plain, drafting))
        assert drafting.bodies == []
        result = run(made, FakeContext(tmp_path / "b"), params(plain, drafting, unproven=True, repeats=1))
    assert result.unproven
    assert result.parity is None


def test_a_proof_of_something_else_is_none(made: Made, tmp_path: Path) -> None:
    other = replace(proof(made, tmp_path / "p"), inputs={"export": "f" * 64})
    with pair(made) as (plain, drafting):
        with pytest.raises(StageError, match=r"proved export ffffffffffff, this one is eeeeeeeeeeee"):
            run(made, FakeContext(tmp_path / "a"), params(plain, drafting), other)
        engine = {"name": "sglang", "version": "0.5.22", "settings": {}}
        with pytest.raises(
            StageError, match=r"another than the one that parity proved:(?s:.)*version: 0.5.22 was proved"
        ):
            run(made, FakeContext(tmp_path / "b"), params(plain, drafting), proof(made, tmp_path / "q", engine=engine))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"speculative_algorithm": "EAGLE"}, "speculative_algorithm: expected DFLASH, found EAGLE"),
        ({"speculative_num_draft_tokens": 8}, "speculative_num_draft_tokens: expected 4, found 8"),
    ],
)
def test_a_server_that_runs_otherwise_is_not_measured(
    made: Made, tmp_path: Path, said: dict[str, Any], message: str
) -> None:
    with pair(made, said=said) as (plain, drafting), pytest.raises(StageError, match=message):
        run(made, FakeContext(tmp_path), params(plain, drafting), proof(made, tmp_path / "parity"))


def test_a_baseline_that_speculates_is_none(made: Made, tmp_path: Path) -> None:
    with (
        pair(made) as (_, drafting),
        pytest.raises(StageError, match=r"speculative_algorithm: expected None, found DFLASH"),
    ):
        run(made, FakeContext(tmp_path), params(drafting, drafting), proof(made, tmp_path / "parity"))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (generated(8, every=0.001), "the server counts no rounds: it does not speculate"),
        (generated(8, every=0.001, **{**ROUNDS, "cached_tokens": 5}), r"cold, and \d+ prompt tokens were in"),
        (Script(chunks=[(0.0, b"data: {}\n\n")]), "before the measurement failed: not_the_protocol"),
    ],
)
def test_answers_that_are_no_measurement(made: Made, tmp_path: Path, answer: Script, message: str) -> None:
    with pair(made, answer=lambda n, body: answer) as (plain, drafting), pytest.raises(StageError, match=message):
        run(made, FakeContext(tmp_path), params(plain, drafting), proof(made, tmp_path / "parity"))


def test_a_server_that_dies_leaves_finished_blocks_and_the_next_run_goes_on(made: Made, tmp_path: Path) -> None:
    context, proved = FakeContext(tmp_path), proof(made, tmp_path / "parity")
    with pair(made, dies_after=4) as (plain, drafting):
        with pytest.raises(StageError, match=r"does not answer any more(?s:.)*Finished blocks are kept"):
            run(made, context, params(plain, drafting), proved)
        assert not (context.output / "load.json").exists()
    kept = (context.scratch / "blocks.jsonl").read_text().splitlines()
    assert kept
    with pair(made) as (plain, drafting):
        result = run(made, context, params(plain, drafting), proved)
    assert (context.output / "blocks.jsonl").read_text().splitlines()[: len(kept)] == kept
    assert all(c.drafter and c.drafter.tau == 7 / 3 for c in result.cells)


def test_open_loops_and_both_ways_to_sample(made: Made, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"seconds": 0.0}\n{"seconds": 0.01}\n')
    with pair(made) as (plain, drafting):
        given = params(
            plain, drafting, concurrency=(), rates=(200.0,), trace=str(trace), repeats=1,
            sampling={"greedy": {}, "production": {"temperature": 0.8, "top_p": 0.9}},
        )  # fmt: skip
        assert list(load.check(given)) == []
        result = run(made, FakeContext(tmp_path), given, proof(made, tmp_path / "parity"))
        temperatures = {body["sampling_params"]["temperature"] for body in drafting.bodies}
    assert temperatures == {0.0, 0.8}
    assert {(c.sampling, c.load) for c in result.cells} == {
        (name, what) for name in ("greedy", "production") for what in ("200 a second", "trace")
    }
    assert result.break_even == []


def test_what_is_wrong_before_anything_runs(tmp_path: Path) -> None:
    def problems(**values: Any) -> dict[str, str]:
        return {p.where: p.expected for p in load.check(LoadParams.model_validate(values))}

    assert "sglang" in problems()
    assert "baseline.url" in problems(sglang={"url": "http://h:1"})
    both = {"sglang": {"url": "http://h:1"}, "baseline": {"url": "http://h:2"}}
    assert problems(**both) == {}
    assert "cross_check" in problems(**both, cross_check=True)
    trace = tmp_path / "trace"
    trace.write_text("x\n")
    assert "trace" in problems(**both, trace=str(trace))
    with_flags = {**both, "baseline": {"url": "http://h:2", "launch_flags": ("--tp-size", "2")}}
    assert "baseline.launch_flags" in problems(**with_flags)
