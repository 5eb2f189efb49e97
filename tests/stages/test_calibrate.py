"""The calibrate stage on a tiny target, with a drafter whose confidence is made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import specflow.drafters.loading
from specflow.calibration.round_lines import read_rounds, write_rounds
from specflow.calibration.sglang_sts import read_sts
from specflow.calibration.sts import FitRules, fit_sts
from specflow.config.calibrate import CalibrateParams
from specflow.config.drafter import DrafterParams
from specflow.drafters.dflash.params import Params as DFlashParams
from specflow.stages import calibrate
from specflow.stages.contract import StageError
from tests.calibration.synthetic import synthetic
from tests.serving.helpers import Pipeline, make_pipeline
from tests.stages.pipeline_helpers import FakeContext, inputs

PARAMS = CalibrateParams(max_new_tokens=8, bootstraps=10, precision="fp32", threads=1)


class Sure:
    """A proposer with a confidence that follows its anchor."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.confidence_m: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def propose(self, anchor: int) -> Tensor:
        proposals: Tensor = self._inner.propose(anchor)
        self.confidence_m = logits_of(anchor)
        return proposals


def logits_of(anchor: int) -> Tensor:
    return torch.tensor([1.0, -2.5, 0.1]) * (anchor % 7 - 2.5)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return make_pipeline(tmp_path_factory.mktemp("calibrate"))


@pytest.fixture
def sure(monkeypatch: pytest.MonkeyPatch) -> None:
    load = specflow.drafters.loading.load_drafter
    monkeypatch.setattr("specflow.drafters.loading.load_drafter", lambda *a, **k: Sure(load(*a, **k)))


def run(pipeline: Pipeline, context: FakeContext, **changes: Any) -> dict[str, Any]:
    given = inputs(pipeline.target, pipeline.drafter, pipeline.tokens)
    return dict(calibrate.run(given, PARAMS.model_copy(update=changes), context))


@pytest.mark.usefixtures("sure")
def test_rounds_are_collected_and_the_scarce_keep_one(pipeline: Pipeline, tmp_path: Path) -> None:
    context = FakeContext(tmp_path / "run")
    metrics = run(pipeline, context)
    records = read_rounds(context.output / "records.jsonl")
    assert metrics["rounds"] == records.rounds > 8
    known = {tuple(logits_of(anchor).tolist()) for anchor in range(7)}
    assert {tuple(row) for row in records.logits_NM.tolist()} <= known
    assert len({tuple(row) for row in records.logits_NM.tolist()}) > 1
    report = json.loads((context.output / "calibration.json").read_text())
    assert report["calibrated"] is True
    assert report["conditions"]["precision"] == "fp32"
    assert [p["reason"] for p in report["positions"]] == ["too few events"] * 3
    sts = read_sts(context.output / "sts.json", num_proposals=3)
    assert sts.temperatures == (1.0, 1.0, 1.0)
    assert (sts.num_samples, sts.dataset) == (records.rounds, report["conditions"]["dataset_sha256"])
    assert list(sts.ece_before) == metrics["ece_before"] == metrics["ece_after"]
    assert (context.output / "reliability.png").read_bytes().startswith(b"\x89PNG")
    assert any("0 of 3 temperatures differ from 1" in message for message in context.messages)


@pytest.mark.usefixtures("sure")
def test_a_resumed_run_gives_the_same_bytes(pipeline: Pipeline, tmp_path: Path) -> None:
    first, again = FakeContext(tmp_path / "a"), FakeContext(tmp_path / "b")
    run(pipeline, first)
    whole = (first.scratch / "rounds.jsonl").read_text()
    (again.scratch / "rounds.jsonl").write_text(whole[: len(whole) // 2])
    run(pipeline, again)
    for name in ("sts.json", "records.jsonl", "calibration.json", "reliability.png"):
        assert (first.output / name).read_bytes() == (again.output / name).read_bytes()


def test_a_drafter_without_confidence(pipeline: Pipeline, tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"drafter tiny \(method dflash\) has no confidence.*calibrate.optional"):
        run(pipeline, FakeContext(tmp_path / "a"))
    context = FakeContext(tmp_path / "b")
    metrics = run(pipeline, context, optional=True)
    assert metrics["calibrated"] is False
    assert [p.name for p in context.output.iterdir()] == ["calibration.json"]
    assert json.loads((context.output / "calibration.json").read_text())["calibrated"] is False
    assert "the calibration is empty" in context.messages[-1]


def test_a_method_without_confidence_is_told_before_anything_runs() -> None:
    drafter = DFlashParams(method="dflash")
    (problem,) = calibrate.check_upstream({"train": drafter, "calibrate": CalibrateParams()})
    assert problem.where == "calibrate.optional"
    assert "optional to true" in problem.hint
    assert not list(calibrate.check_upstream({"train": drafter, "calibrate": CalibrateParams(optional=True)}))
    # A method that cannot say is found out when it runs.
    assert not list(calibrate.check_upstream({"train": DrafterParams(method="x"), "calibrate": CalibrateParams()}))


def test_records_from_elsewhere(pipeline: Pipeline, tmp_path: Path) -> None:
    records = synthetic([3.0, 0.5, 1.0], rounds=4000)
    file = tmp_path / "rounds.jsonl"
    write_rounds(file, records, [str(i) for i in range(200)])
    context = FakeContext(tmp_path / "run")
    metrics = run(pipeline, context, records=file)
    assert metrics["temperatures"] == list(fit_sts(records, FitRules(bootstraps=10)).temperatures)
    assert metrics["temperatures"][0] == pytest.approx(3.0, rel=0.2)
    assert metrics["ece_after"][0] < metrics["ece_before"][0]
    shards = tmp_path / "shards"
    shards.mkdir()
    for part in (0, 1):
        rows = slice(2000 * part, 2000 * part + 2000)
        mask = torch.as_tensor(records.accepted_NM()[rows].astype(np.float32))
        torch.save({"logits": torch.as_tensor(records.logits_NM[rows]), "prefix_mask": mask}, shards / f"s.{part}.pt")
    served = run(pipeline, FakeContext(tmp_path / "served"), records=shards)
    assert served["rounds"] == 4000
    assert served["temperatures"][0] == pytest.approx(3.0, rel=0.2)
    assert [p.name for p in PARAMS.model_copy(update={"records": shards}).record_files()] == ["s.0.pt", "s.1.pt"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert [p.where for p in calibrate.check(PARAMS.model_copy(update={"records": empty}))] == ["records"]


def test_unfit_records_fail_with_every_reason(pipeline: Pipeline, tmp_path: Path) -> None:
    good = {"request": "a", "logits": [2.0, 1.0], "accepted": 1, "proposed": 2, "verify_len": 3, "cap_trim": 0}
    file = tmp_path / "rounds.jsonl"
    file.write_text(json.dumps({**good, "verify_len": 2}) + "\n" + json.dumps({**good, "accepted": 9}) + "\n")
    with pytest.raises(StageError, match="must not be calibrated on") as caught:
        run(pipeline, FakeContext(tmp_path / "a"), records=file)
    assert "not verified in full" in str(caught.value)
    assert "accepted fewer than 0" in str(caught.value)
    file.write_text("".join(json.dumps({**good, "request": r}) + "\n" for r in "ab"))
    with pytest.raises(StageError, match="records of 2 proposals; drafter tiny makes 3"):
        run(pipeline, FakeContext(tmp_path / "b"), records=file)
