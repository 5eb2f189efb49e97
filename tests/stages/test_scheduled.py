"""bench, compare and verify with a scheduler: what it reads, what it did, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import specflow.drafters.loading
from specflow.config.bench import BenchParams
from specflow.config.compare import CompareParams
from specflow.config.export import ExportParams
from specflow.config.scheduler import SchedulerParams
from specflow.config.verify import LosslessParams, VerifyParams
from specflow.costs.drafting import DraftCost
from specflow.costs.sglang_tables import table_as_json
from specflow.costs.tables import AdditiveTable
from specflow.drafters.base import Proposal
from specflow.stages import bench, compare, export, verify
from specflow.stages.contract import Artifact, StageError
from tests.serving.helpers import Pipeline, make_pipeline
from tests.stages.pipeline_helpers import FakeContext, artifact, inputs

torch.set_num_threads(1)
M = 3
TABLE = AdditiveTable(
    bias_seconds=0.01, requests=(1, 4), alpha_seconds=(0.0, 0.0), rows=(1, 64), theta_seconds=(0.005, 0.32)
)
"""10 ms, and 5 ms a row: of a request's proposals only the likelier ones are worth while."""
LAGGED = SchedulerParams(mode="lagged", lag=1, explore=0.2)


class Sure:
    """A proposer with a confidence that follows its anchor and what it proposed before."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.confidence_m: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def fork(self) -> Sure:
        return Sure(self._inner.fork())

    def propose(self, anchor: int) -> Tensor:
        return self._note(anchor, self._inner.propose(anchor))

    def sample(self, anchor: int, draw: Any) -> Proposal:
        made: Proposal = self._inner.sample(anchor, draw)
        self._note(anchor, made.tokens_m)
        return made

    def _note(self, anchor: int, tokens_m: Tensor) -> Tensor:
        before = torch.cat((torch.tensor([anchor]), tokens_m[:-1]))
        self.confidence_m = 2.0 * (before % 7 - 2.5)
        return tokens_m


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return make_pipeline(tmp_path_factory.mktemp("scheduled"))


@pytest.fixture
def sure(monkeypatch: pytest.MonkeyPatch) -> None:
    load = specflow.drafters.loading.load_drafter
    monkeypatch.setattr("specflow.drafters.loading.load_drafter", lambda *a, **k: Sure(load(*a, **k)))
    cheap = DraftCost(per_round=0.0005, per_request=0.001)
    monkeypatch.setattr("specflow.decoding.draft_timing.time_drafting", lambda *a: cheap)


def costs(root: Path, *, precision: str = "fp32") -> Artifact:
    root.mkdir(parents=True)
    engine = {"name": "embedded", "precision": precision, "threads": 1, "device": "cpu"}
    record = {"conditions": {"engine": engine}, "tables": {"additive": table_as_json(TABLE)}}
    (root / "costs.json").write_text(json.dumps(record))
    return artifact("costs", root)


def calibration(root: Path, drafter: Artifact) -> Artifact:
    root.mkdir(parents=True)
    (root / "sts.json").write_text(json.dumps({"temperatures": [2.0, 1.0, 1.0]}))
    rows = [
        {"request": "a", "logits": [0.5, 0.5, 0.5], "accepted": n, "proposed": M, "verify_len": M + 1, "cap_trim": 0}
        for n in (0, 1, 3, 1)
    ]
    (root / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return replace(artifact("calibration", root), inputs={"drafter": drafter.key})


def measured(pipeline: Pipeline, root: Path) -> tuple[Artifact, Artifact]:
    return calibration(root / "calibration", pipeline.drafter), costs(root / "costs")


BENCH = BenchParams(
    max_new_tokens=24, warmup_prompts=0, precision="fp32", compare_transformers=False, threads=1, scheduler=LAGGED
)


@pytest.mark.usefixtures("sure")
def test_bench(pipeline: Pipeline, tmp_path: Path) -> None:
    context = FakeContext(tmp_path / "run")
    given = inputs(pipeline.target, pipeline.drafter, pipeline.tokens, *measured(pipeline, tmp_path))
    bench.run(given, BENCH, context)
    record = json.loads((context.output / "result.json").read_text())
    scheduler = record["scheduler"]
    assert (scheduler["mode"], scheduler["temperatures"]) == ("lagged", [2.0, 1.0, 1.0])
    assert scheduler["expected_survival"] == [0.75, 0.25, 0.25]
    assert scheduler["drafting_seconds"] == {"per_round": 0.0005, "per_request": 0.001}
    granted = scheduler["granted"]
    rounds = [
        r for line in (context.output / "rounds.jsonl").read_text().splitlines() for r in json.loads(line)["rounds"]
    ]
    assert granted["rounds"] == len(rounds) == record["total"]["rounds"]
    assert granted["rows"] == sum(r["verified"] + 1 for r in rounds)
    assert granted["rows"] + granted["rows_saved"] == (M + 1) * len(rounds)
    assert granted["rows_saved"] > 0
    assert record["equality"]["differing"] == 0  # greedy outputs stay plain decoding's
    assert any("scheduler lagged; drafting takes 0.50 ms a round and 1.00 ms a request" in m for m in context.messages)


@pytest.mark.usefixtures("sure")
def test_what_is_missing_or_unlike(pipeline: Pipeline, tmp_path: Path) -> None:
    base = (pipeline.target, pipeline.drafter, pipeline.tokens)
    with pytest.raises(StageError, match="there is no cost table: use the flow `scheduler`"):
        bench.run(inputs(*base), BENCH, FakeContext(tmp_path / "a"))
    context = FakeContext(tmp_path / "b")
    bench.run(inputs(*base, costs(tmp_path / "costs", precision="packed")), BENCH, context)
    assert any("measured otherwise: precision packed, here fp32" in m for m in context.messages)
    assert any("is not calibrated" in m for m in context.messages)
    for off in ({"scheduler": None}, {"scheduler_drafters": ("other",)}, {"scheduler": SchedulerParams(mode="off")}):
        context = FakeContext(tmp_path / "off")
        bench.run(inputs(*base), BENCH.model_copy(update=off), context)
        assert json.loads((context.output / "result.json").read_text())["scheduler"] is None


def test_a_drafter_without_confidence_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    given = inputs(pipeline.target, pipeline.drafter, pipeline.tokens, *measured(pipeline, tmp_path))
    with pytest.raises(StageError, match="DFlashProposer has no confidence to go by"):
        bench.run(given, BENCH, FakeContext(tmp_path / "run"))


@pytest.mark.usefixtures("sure")
def test_compare(pipeline: Pipeline, tmp_path: Path) -> None:
    context = FakeContext(tmp_path / "run")
    params = CompareParams(
        concurrency=(2,), max_new_tokens=16, precision="fp32", threads=1, schedulers={"tiny": ("causal", "lagged")}
    )
    given = inputs(pipeline.target, pipeline.drafter, pipeline.tokens, *measured(pipeline, tmp_path))
    compare.run(given, params, context)
    rows = json.loads((context.output / "comparison.json").read_text())["rows"]
    assert {row["mode"] for row in rows} == {"plain", "tiny", "tiny+causal", "tiny+lagged"}
    assert all(row["equal_prompts"] == row["prompts"] == 2 for row in rows)
    wrong = params.model_copy(update={"schedulers": {"nobody": ("causal",)}})
    with pytest.raises(StageError, match=r"compare\.schedulers names nobody"):
        compare.run(given, wrong, FakeContext(tmp_path / "b"))


@pytest.mark.usefixtures("sure")
def test_verify_with_the_certificate(pipeline: Pipeline, tmp_path: Path) -> None:
    made = FakeContext(tmp_path / "export")
    export.run(inputs(pipeline.target, pipeline.drafter), ExportParams(dtype="float32"), made)
    exported = artifact("export", made.output)
    given = inputs(
        pipeline.target, pipeline.drafter, exported, pipeline.features, pipeline.tokens, *measured(pipeline, tmp_path)
    )
    lossless = LosslessParams(enabled=True, samples=50, alphabet=6, continuations=0, temperatures=(1.0,))
    params = VerifyParams(
        max_new_tokens=12, documents=2, anchors_per_document=2, batch_size=8, threads=1, lossless=lossless,
        scheduler=LAGGED,
    )  # fmt: skip
    context = FakeContext(tmp_path / "run")
    verify.run(given, params, context)
    record = json.loads((context.output / "verification.json").read_text())
    assert record["passed"]
    assert record["scheduler"]["mode"] == "lagged"
    numbers = next(check["numbers"] for check in record["checks"] if check["name"] == "lossless")
    assert numbers["scheduler"] == "lagged"
    assert numbers["rounds_cut"] > 20


def test_a_flow_without_costs_is_told_before_it_runs() -> None:
    sections: dict[str, Any] = {"bench": BENCH, "calibrate": object()}
    (problem,) = bench.check_upstream(sections)
    assert problem.where == "bench.scheduler"
    assert "without profile before bench" in problem.found
    assert "flow `scheduler`" in problem.hint
    assert not list(bench.check_upstream({**sections, "profile": object()}))
    assert not list(bench.check_upstream({"bench": BENCH.model_copy(update={"scheduler": None})}))
    (problem,) = verify.check_upstream({"verify": VerifyParams(scheduler=LAGGED)})
    assert "without calibrate and profile before verify" in problem.found
    (problem,) = compare.check_upstream({"compare": CompareParams(schedulers={"d": ("causal",)})})
    assert problem.where == "compare.schedulers"
