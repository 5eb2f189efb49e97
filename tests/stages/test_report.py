"""The report stage joins real artifacts of a tiny run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specflow.config.report import ReportParams
from specflow.data.documents import TokenDocument, write_documents
from specflow.stages import report
from specflow.stages.contract import Artifact, Inputs
from tests.reporting.helpers import result
from tests.stages.pipeline_helpers import FakeContext, tree


def made(root: Path, kind: str, key: str, files: dict[str, str], **more: object) -> Artifact:
    path = root / key
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(content)
    return replace(Artifact(kind=kind, key=key * 8, path=path), **more)  # type: ignore[arg-type]


@pytest.fixture
def given(tmp_path: Path) -> Inputs:
    curve = [
        {"step": 1, "loss": 2.0},
        {"step": 2, "loss": 1.0},
        {"step": 2, "tau": 1.5, "by_kind": {"x": {"tau": 1.5}}},
    ]
    verification = {"passed": True, "checks": [{"what": "outputs are equal", "passed": True, "numbers": {"n": 3}}]}
    tokens = made(tmp_path, "tokens", "tttttttt", {"quarantine.jsonl": '{"reason": "empty_answer"}\n'})
    document = TokenDocument(
        id="a", split="train", kind="x", ids=[1, 2, 3, 4], supervised=[False, False, True, True], prompt_length=2
    )
    write_documents(tokens.path / "tokens.jsonl", [document])
    drafter = made(
        tmp_path,
        "drafter",
        "dddddddd",
        {"drafter/manifest.json": "{}", "metrics.jsonl": "\n".join(json.dumps(c) for c in curve)},
        item="small",
    )
    read = {"inputs": {"drafter": drafter.key}, "item": "small"}
    return Inputs(
        (
            drafter,
            made(tmp_path, "verification", "vvvvvvvv", {"verification.json": json.dumps(verification)}, **read),
            made(tmp_path, "benchmark", "bbbbbbbb", {"result.json": json.dumps(result("small"))}, **read),
            made(tmp_path, "features", "ffffffff", {"x": ""}, metrics={"tokens": 4}),
            tokens,
            made(tmp_path, "conversations", "cccccccc", {"x": ""}),
        )
    )


def test_payload_and_summary(given: Inputs, tmp_path: Path) -> None:
    context = FakeContext(tmp_path / "run")
    metrics = report.run(given, ReportParams(title="tiny"), context)
    files = tree(context.output)
    assert sorted(files) == [
        "acceptance.png", "loss.png", "overview.png", "report.html", "round.png", "summary.json",
    ]  # fmt: skip
    found = json.loads(files["summary.json"])
    assert found["baseline_tokens_per_second"] == pytest.approx(1 / 0.045)
    assert found["drafter_tokens_per_second"] == pytest.approx(6 * (2 * 12 + 3 * 3) / (12 * 0.4))
    assert found["tau"] == metrics["tau"] == pytest.approx(2.75)
    assert sorted(found["kinds"]) == ["broad", "service"]
    assert found["kinds"]["service"]["speedup"] == pytest.approx(0.045 * 24 / 0.4)
    page = files["report.html"].decode()
    assert '<td class="">empty_answer</td><td class="n">1</td>' in page
    assert "outputs are equal" in page
    assert "small" in context.messages[0]
    assert "22.2" in context.messages[0]
    assert "report.html" in context.messages[-1]


def test_same_inputs_give_the_same_bytes(given: Inputs, tmp_path: Path) -> None:
    outputs = []
    for name in ("a", "b"):
        context = FakeContext(tmp_path / name)
        report.run(given, ReportParams(), context)
        outputs.append(tree(context.output))
    assert outputs[0] == outputs[1]


def test_without_a_benchmark_nothing_is_said_about_speed(given: Inputs, tmp_path: Path) -> None:
    context = FakeContext(tmp_path / "run")
    without = Inputs(tuple(a for a in given.artifacts if a.kind != "benchmark"))
    metrics = report.run(without, ReportParams(), context)
    assert metrics["speedup"] is None
    assert "nothing is said about speed" in (context.output / "report.html").read_text()
    assert sorted(p.name for p in context.output.glob("*.png")) == ["loss.png"]
