"""Advice: the fastest, the simpler of two that are as fast, and what it is told from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specflow.simulation.advice import advise, best_of, options_at
from specflow.simulation.evidence import Sources, gather
from specflow.simulation.load import Load
from specflow.simulation.predict import predict
from tests.simulation.helpers import TABLE, evidence, random_requests


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specflow.simulation.predict.REQUEST_ROUNDS", 1600)
    monkeypatch.setattr("specflow.simulation.predict.MOST_ROUNDS", 400)


def test_the_best_of_two_drafters() -> None:
    quick, slow = evidence(name="quick", beside=0.0), evidence(name="slow", beside=0.01, confident=False)
    found = advise([slow, quick], Load(concurrency=8), curve=(1, 512))
    assert [(o.drafter, o.policy.name) for o in found.options] == [
        (None, "plain"),
        *(("slow", f"fixed {n}") for n in range(1, 5)),
        *(("quick", f"fixed {n}") for n in range(1, 5)),
        ("quick", "causal"),
        ("quick", "lagged"),
    ]
    assert found.best.drafter == "quick"
    fastest = max(o.outcome.tokens_per_second for o in found.options)
    assert found.best.outcome.tokens_per_second >= fastest / 1.01
    assert found.best.gain == pytest.approx(
        found.best.outcome.tokens_per_second / found.options[0].outcome.tokens_per_second
    )
    assert set(found.break_even) == {"slow", "quick"}
    assert {"causal", "lagged", "fixed 4"} <= set(found.break_even["quick"])
    edge = found.break_even["slow"]["fixed 4"]
    assert edge is not None
    for concurrency, pays in ((edge, True), (edge + 1, False)):
        load = Load(concurrency=concurrency)
        plain, drafted = (predict(slow, p, load).tokens_per_second for p in (found.options[0].policy, fixed(4)))
        assert (drafted > plain) is pays
    assert [row["concurrency"] for row in found.curve] == [1, 512]
    assert (found.curve[0]["measured"], found.curve[1]["measured"]) == (True, True)
    with pytest.raises(ValueError, match="nothing to compare"):
        advise([], Load(concurrency=1))


def fixed(length: int) -> Any:
    from specflow.simulation.policy import Policy

    return Policy(kind="fixed", length=length)


def test_a_simpler_option_wins_within_one_percent() -> None:
    options = options_at([evidence(confident=False)], Load(concurrency=1))

    def with_rate(option: Any, rate: float) -> Any:
        return replace(option, outcome=replace(option.outcome, tokens_per_second=rate))

    plain, first, second = (with_rate(o, r) for o, r in zip(options, (99.5, 99.0, 100.0), strict=False))
    assert best_of([plain, first, second]) is plain
    assert best_of([with_rate(plain, 98.0), first, second]) is second
    delayed = [replace(o, outcome=replace(o.outcome, seconds_per_request=s)) for o, s in ((plain, 3.0), (first, 2.0))]
    assert best_of(delayed) is delayed[1]


def test_nothing_pays_where_drafting_is_dear() -> None:
    found = advise([evidence(beside=1.0)], Load(concurrency=8), curve=())
    assert (found.best.drafter, found.best.gain) == (None, 1.0)
    assert set(found.break_even["d"].values()) == {None}


def benchmark(path: Path, requests: list[list[dict[str, Any]]]) -> Path:
    path.mkdir()
    for request in requests:
        for r in request:
            r.update(draft_seconds=0.002, verify_seconds=9.0, state_seconds=0.001, other_seconds=0.0005)
    lines = [{"id": str(i), "kind": "k", "repeat": 0, "rounds": r} for i, r in enumerate(requests)]
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sides = {
        "plain": {"tokens_per_second": 1 / 0.0225, "prefill_seconds": 2.0},
        "speculative": {"tokens_per_second": 80.0},
    }
    (path / "result.json").write_text(json.dumps({"total": sides, "dataset": {"prompts": 20, "repeats": 2}}))
    return path


def calibration(path: Path, requests: list[list[dict[str, Any]]], temperatures: list[float] | None) -> Path:
    path.mkdir()
    if temperatures is not None:
        (path / "sts.json").write_text(json.dumps({"temperatures": temperatures}))
        rows = [
            {"request": str(q), "logits": r["confidence"], "accepted": r["accepted"], "proposed": r["proposed"]}
            for q, request in enumerate(requests)
            for r in request
        ]
        (path / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_evidence_of_a_benchmark(tmp_path: Path) -> None:
    requests = random_requests(requests=10)
    bench = benchmark(tmp_path / "bench", requests)
    found = gather(Sources(name="d", benchmark=bench, calibration=None), TABLE)
    assert found.evidence.cost.seconds_per_request == pytest.approx(0.0005)
    assert found.evidence.cost.drafting.per_request == pytest.approx(0.003)
    assert found.evidence.plain.seconds_per_request == pytest.approx(0.0025)  # 22.5 ms a step, of which the pass is 20
    assert found.evidence.prefill_seconds == pytest.approx(0.05)
    assert found.evidence.traces.survival_NM is not None
    text = "\n".join(found.notes)
    assert "80.0 measured by the benchmark" in text
    assert "its confidence is not calibrated" in text
    warm = calibration(tmp_path / "cal", requests, [2.0, 1.0, 1.0, 1.0])
    calibrated = gather(Sources(name="d", benchmark=bench, calibration=warm), TABLE)
    assert "not calibrated" not in "\n".join(calibrated.notes)
    before, after = (g.evidence.traces.survival_NM for g in (found, calibrated))
    assert before is not None
    assert after is not None
    assert (abs(after[:, 0] - 0.5) < abs(before[:, 0] - 0.5) + 1e-6).all()


def test_evidence_without_a_benchmark_or_confidence(tmp_path: Path) -> None:
    requests = random_requests(requests=10)
    alone = gather(
        Sources(name="d", benchmark=None, calibration=calibration(tmp_path / "cal", requests, [1.0] * 4)), TABLE
    )
    assert alone.evidence.traces.tokens_Q.sum() == sum(r["delivered"] for q in requests for r in q)
    assert "no benchmark, so drafting" in alone.notes[0]
    silent = benchmark(tmp_path / "bench", random_requests(requests=10, confident=False))
    empty = calibration(tmp_path / "empty", [], None)
    found = gather(Sources(name="d", benchmark=silent, calibration=empty), TABLE)
    assert found.evidence.traces.survival_NM is None
    assert "no confidence, so a scheduler has nothing to go by" in found.notes[-1]
    with pytest.raises(ValueError, match="rounds with no proposals"):
        gather(Sources(name="d", benchmark=None, calibration=empty), TABLE)
