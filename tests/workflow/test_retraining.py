"""Retrainings on the smoke configuration: what is new is made, what is not is reused, and the gate's word is law."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.cli.work import Work, open_work
from specflow.features.reader import FeatureReader
from specflow.workflow.promoting import rollback
from specflow.workflow.promotion import DrafterRegistry, Event
from specflow.workflow.store import ArtifactStore
from tests.workflow.in_process import Made, make

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow
torch.set_num_threads(1)

BASE = {"target", "regenerate", "tokenize", "capture"}


def slice_nodes(number: int) -> set[str]:
    return {f"{stage}-new:{number:05d}" for stage in ("regenerate", "tokenize", "capture")}


class Service:
    """A configuration, its growing source, and its store."""

    def __init__(self, root: Path, rows: int) -> None:
        self.root, self.store = root, ArtifactStore(root / "artifacts")
        shutil.copytree(ROOT / "configs" / "prompts-smoke", root / "prompts-smoke")
        shutil.copyfile(ROOT / "configs" / "retrain-smoke.yaml", root / "retrain-smoke.yaml")
        self.source = root / "prompts-smoke" / "new.jsonl"
        self.lines = self.source.read_text().splitlines(keepends=True)
        self.source.write_text("".join(self.lines[:rows]))

    def work(self, *settings: str) -> Work:
        return open_work("retrain", str(self.root / "retrain-smoke.yaml"), settings=settings, store=self.store.root)

    def run(self, *settings: str) -> Made:
        return make(self.work(*settings).plan(), self.root / "logs")

    def registry(self) -> DrafterRegistry:
        return DrafterRegistry(self.store)

    def grow(self) -> None:
        self.source.write_text("".join(self.lines))


def always_promote(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement of a random drafter is chance; what follows from a decision is not."""
    monkeypatch.setattr("specflow.reporting.decision._obstacle", lambda best, baseline, rule: "")


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path, rows=7)


@dataclass
class Twice:
    """A service after three runs: the first, one with nothing new, one with three more rows; all promote."""

    service: Service
    first: Made
    again: Made
    second: Made
    promoted: Event
    """By the first."""


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twice]:
    service = Service(tmp_path_factory.mktemp("twice"), rows=7)
    with pytest.MonkeyPatch.context() as patch:
        always_promote(patch)
        first = service.run()
        promoted = service.registry().promoted("smoke")
        assert promoted is not None
        again = service.run()
        assert len(service.registry().events()) == 2, "a decision is entered once"
        service.grow()
        yield Twice(service, first, again, service.run(), promoted)


def test_the_first_run_makes_all_and_its_drafter_is_what_a_server_loads(twice: Twice) -> None:
    first, service = twice.first, twice.service
    assert first.of("made") == set(first.statuses), first.messages
    assert slice_nodes(0) < set(first.statuses), "five of the seven rows are a slice, two wait"
    assert not slice_nodes(1) & set(first.statuses)
    assert "is promoted" in first.text
    link = service.registry().link("smoke")
    assert json.loads((link / "config.json").read_text())["architectures"] == ["DFlashDraftModel"]
    assert "init_from" not in lineage(service, twice.promoted)


def test_where_nothing_is_new_all_is_found(twice: Twice) -> None:
    """Though the drafter that training starts from would now be its own result."""
    assert twice.again.of("cached") == set(twice.again.statuses)


def test_a_second_run_makes_only_what_is_new(twice: Twice) -> None:
    second, service = twice.second, twice.service
    assert second.of("cached") == BASE | slice_nodes(0)
    assert second.of("made") == set(second.statuses) - BASE - slice_nodes(0)
    assert slice_nodes(1) | {"incumbent:promoted"} < second.of("made")
    newer = service.registry().promoted("smoke")
    assert newer is not None
    assert newer.drafter != twice.promoted.drafter
    assert [e.state for e in service.registry().entries()] == ["retired", "promoted"]
    assert lineage(service, newer)["init_from"]["source"] == twice.promoted.drafter, "training started from it"
    decision = json.loads((service.store.path("decision", str(newer.decision)) / "decision.json").read_text())
    assert decision["baseline"]["drafter"] == twice.promoted.drafter
    assert decision["candidates"][0]["certificate"] == "passed"


def test_slices_are_byte_equal_to_those_of_a_run_from_scratch(twice: Twice, tmp_path: Path) -> None:
    other = Service(tmp_path / "scratch", rows=10)
    make(other.work().plan(only={"join"}, upstream=True), other.root / "logs")
    for kind in ("conversations", "tokens", "features"):
        ours, theirs = payloads(twice.service.store, kind), payloads(other.store, kind)
        assert theirs.items() <= ours.items(), f"{kind} of a run from scratch differ"
        assert len(theirs) >= 3


def test_what_was_rolled_back_is_not_promoted_again(twice: Twice) -> None:
    service = twice.service
    first, second = service.registry().entries("smoke")
    rollback(service.store, "smoke", reason="answers were slow")
    promoted = service.registry().promoted("smoke")
    assert promoted is not None
    assert promoted.drafter == first.drafter
    again = service.run()
    assert again.of("cached") == set(again.statuses)
    assert [(e.drafter, e.state) for e in service.registry().entries()] == [
        (first.drafter, "promoted"),
        (second.drafter, "retired"),
    ]
    # Another rule is another decision, about the same drafter.
    service.run("gate.confidence=0.9")
    entry = service.registry().entries("smoke")[1]
    assert entry.state == "retired"
    assert "was rolled back before" in entry.reason


def lineage(service: Service, event: Event) -> dict[str, Any]:
    manifest = service.store.path("drafter", event.drafter) / "drafter" / "manifest.json"
    found: dict[str, Any] = json.loads(manifest.read_text())["lineage"]
    return found


def payloads(store: ArtifactStore, kind: str) -> dict[str, str]:
    """Digest over the files of each artifact, by its key. The metrics of a capture hold seconds and are not in it."""
    return {record.key: record.content_digest for record in store.records() if record.kind == kind}


def test_joined_features_are_those_of_the_slices_and_no_heldout_prompt_is_trained_on(service: Service) -> None:
    service.grow()
    plan = service.work().plan(only={"join"}, upstream=True)
    made = make(plan, service.root / "logs")
    assert made.of("failed") == set()
    tokens, joined = plan.node("pool").key, FeatureReader(service.store.path("features", plan.node("join").key))
    rows = [json.loads(line) for line in (service.store.path("tokens", tokens) / "tokens.jsonl").open()]
    assert len(joined) == len(rows) == 12 + 10
    assert len({row["id"] for row in rows}) == len(rows)
    heldout = {tuple(row["ids"][: row["prompt_length"]]) for row in rows if row["split"] == "heldout"}
    train = {tuple(row["ids"][: row["prompt_length"]]) for row in rows if row["split"] == "train"}
    assert not heldout & train
    place = 0
    for name in ("capture", "capture-new:00000", "capture-new:00001"):
        own = FeatureReader(service.store.path("features", plan.node(name).key))
        for i in range(len(own)):
            ours, theirs = joined.document(place + i), own.document(i)
            assert ours.token_ids_T.tolist() == theirs.token_ids_T.tolist() == rows[place + i]["ids"]
            assert torch.equal(ours.features_TKH, theirs.features_TKH)
            assert torch.equal(ours.last_hidden_TH, theirs.last_hidden_TH)
            assert (ours.id, ours.split) == (rows[place + i]["id"], rows[place + i]["split"])
        place += len(own)
    arrays = service.store.path("features", plan.node("join").key) / "store/shard-00000/features/c/0/0/0"
    assert arrays.stat().st_nlink > 1, "the arrays are linked, not copied"


def test_a_failed_verification_keeps_what_runs_and_says_why(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        from specflow.stages.contract import StageError

        raise StageError("1 of 6 checks failed: lossless")

    monkeypatch.setattr("specflow.stages.verify.run", broken)
    made = service.run()
    assert made.of("failed") == {"verify:dflash"}
    assert made.of("not run") == {"gate"}
    (entry,) = service.registry().entries("smoke")
    assert (entry.state, entry.name) == ("candidate", "dflash")
    assert entry.reason == "nothing was decided, because verify:dflash failed or did not run"
    assert service.registry().promoted("smoke") is None
    assert "plain decoding is kept" in made.text
    service.run()
    assert len(service.registry().events()) == 1, "said once"


def test_the_plan_asks_for_a_certificate_and_for_a_measured_concurrency(service: Service) -> None:
    plan = service.work("verify.lossless.enabled=false", "gate.concurrency=8").plan()
    assert {problem.path for problem in plan.problems} == {"verify.lossless.enabled", "gate.concurrency"}
