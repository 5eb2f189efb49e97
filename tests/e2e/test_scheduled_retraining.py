"""`retrain` on a real Prefect server and worker: by the clock with a row appended between, and by a fallen tau."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specflow.workflow.deployments import RUN
from specflow.workflow.promoting import promote
from specflow.workflow.promotion import DrafterRegistry
from specflow.workflow.store import ArtifactStore
from tests.e2e.commands import ROOT
from tests.e2e.place import LIMIT, Place, running, until
from tests.serving.fake_metrics import FakeMetrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT)]

SLICE = 5
"""Rows of a slice of ``retrain-smoke.yaml``."""
SMALLER = [
    "drafters.dflash.train.steps=2",
    "drafters.dflash.train.evaluate_every=2",
    "drafters.dflash.train.checkpoint_every=2",
    "verify.lossless.enabled=false",  # half of the time of a run; tests/e2e/test_retrain.py has the certificate
    "gate.certificate=false",
]
OLD_SHARDS = {f"{stage}-new:00000" for stage in ("regenerate", "tokenize", "capture")}
NEW_SHARD = "capture-new:00001"
OLD = {"target", "regenerate", "tokenize", "capture"} | OLD_SHARDS


class Retraining(Place):
    """A directory with the configuration of a retraining whose source grows."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        shutil.copy(ROOT / "configs" / "retrain-smoke.yaml", self.config)
        self.source = root / "configs" / "prompts-smoke" / "new.jsonl"
        self.rows = self.source.read_text().splitlines(keepends=True)
        self.source.write_text("".join(self.rows[: 2 * SLICE - 1]))

    def append_row(self) -> None:
        """The row that completes the second slice."""
        with self.source.open("a") as file:
            file.write(self.rows[2 * SLICE - 1])

    def completed(self, flow: str) -> list[dict[str, Any]]:
        """Runs of a flow that are completed, the first first."""
        body = {"flows": {"name": {"any_": [flow]}}, "sort": "START_TIME_ASC"}
        found = self.api("flow_runs/filter", **body)
        assert [run for run in found if run["state_type"] in ("FAILED", "CRASHED")] == [], self.logs()
        return [run for run in found if run["state_type"] == "COMPLETED"]

    def nodes(self, run: dict[str, Any]) -> dict[str, str]:
        """State of every node of a run."""
        tasks = self.api("task_runs/filter", flow_runs={"id": {"any_": [run["id"]]}})
        return {task["name"]: task["state"]["name"] for task in tasks}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retraining]:
    made = Retraining(tmp_path_factory.mktemp("retraining"))
    with running(made):
        yield made


def words(*settings: str) -> list[str]:
    return [word for text in settings for word in ("--set", text)]


def test_two_scheduled_retrainings_and_what_each_decided(place: Retraining) -> None:
    deployed = ("deploy", "retrain", "--config", str(place.config), *words(*SMALLER), "--interval", "5")
    assert place.specflow(*deployed)["deployments"][0]["change"] == "create"
    (first, *_) = until(place, lambda: place.completed("retrain"))
    store = ArtifactStore(place.store)
    registry = DrafterRegistry(store)
    candidate, outcome = registry.events()
    assert (candidate.event, candidate.drafter) == ("candidate", outcome.drafter)
    assert outcome.event in ("promoted", "kept")  # chance: the drafter of a random target
    assert outcome.reason
    assert store.exists("decision", str(outcome.decision))
    # Whatever the gate found: from here on there is a drafter to beat.
    if outcome.event == "kept":
        promote(store, "smoke", outcome.drafter, reason="for the test")
    place.append_row()
    second = until(place, lambda: [run for run in place.completed("retrain") if NEW_SHARD in place.nodes(run)])[0]
    # States of tasks travel as events, and may arrive after that of their run.
    until(place, lambda: set(place.nodes(first).values()) == {"Completed"}, 60)
    assert set(place.nodes(first)) >= OLD
    assert NEW_SHARD not in place.nodes(first)
    until(place, lambda: {name for name, state in place.nodes(second).items() if state == "Cached"} == OLD, 60)
    made = {name for name, state in place.nodes(second).items() if state == "Completed"}
    assert made >= {NEW_SHARD, "join", "train:dflash", "incumbent:promoted", "gate"}
    decided = [event for event in registry.events() if event.decision and event.event in ("promoted", "kept")]
    assert len(decided) == 2
    assert decided[1].drafter != outcome.drafter
    assert decided[1].reason
    assert place.specflow("undeploy", "retrain/retrain-smoke", "--cancel")["removed"]


@pytest.mark.heavy
def test_a_fallen_tau_starts_the_deployment(place: Retraining) -> None:
    """Nothing is appended: what is shown is that the watcher reads the server and that Prefect starts the flow."""
    before = {run["id"] for run in place.completed("retrain")}
    with FakeMetrics() as server:
        watch = [f"watch.url={server.url}", "watch.tau=3.0", "watch.seconds=0", "watch.least_rounds=10"]
        deployed = ("deploy", "retrain", "--config", str(place.config), *words(*SMALLER, *watch), "--on-drift")
        found = place.specflow(*deployed, "--interval", "3")["deployments"]
        assert [(one["name"], one["change"]) for one in found] == [
            ("retrain/retrain-smoke", "create"), ("watch/retrain-smoke", "create"),
        ]  # fmt: skip
        server.finish(tokens=290, rounds=100, requests=1)  # tau 2.89: within the margin of a tenth
        until(place, lambda: place.completed("watch"))
        assert {run["id"] for run in place.completed("retrain")} == before
        server.finish(tokens=151, rounds=100, requests=1)  # tau 1.5 in the next window
        (run,) = until(place, lambda: [r for r in place.completed("retrain") if r["id"] not in before])
        said = [run["state"]["message"] for run in place.completed("watch")]
    assert any("as measured" in text for text in said)
    assert run["parameters"]["overrides"][: len(SMALLER)] == SMALLER
    state = json.loads((place.store / ".watch" / "smoke.json").read_text())
    assert state["retrained_at"] is not None
    assert place.specflow("undeploy", "watch/retrain-smoke", "--cancel")["removed"]
    assert place.specflow("undeploy", "retrain/retrain-smoke", "--cancel")["removed"]


@pytest.mark.parametrize("kind", ["docker", "kubernetes"])
def test_prefect_takes_what_other_pools_are_given(place: Retraining, kind: str) -> None:
    """No worker of these is here: pool and deployment are made, and nothing of this machine is in them."""
    deployed = ("deploy", "retrain", "--config", "retrain-smoke", "--name", kind, "--pool-type", kind)
    refused = place.specflow(*deployed, code=2)["errors"][0]
    assert (refused["found"], refused["message"]) == (kind, "work pool 'specflow' exists and is of type process")
    cron = ("--cron", "0 3 * * *", "--timezone", "Europe/Berlin")
    assert place.specflow(*deployed, "--pool", f"{kind}-pool", *cron)["deployments"][0]["change"] == "create"
    pool = place.api_get(f"work_pools/{kind}-pool")
    assert pool["type"] == kind
    assert {"image", "env", "command"} <= set(pool["base_job_template"]["variables"]["properties"])
    made = place.api_get(f"deployments/name/retrain/{kind}")
    assert made["parameters"] == {"flow": "retrain", "config": "retrain-smoke", "overrides": []}
    assert (made["entrypoint"], made["path"], made["job_variables"]) == (RUN, None, {})
    assert [(one["schedule"]["cron"], one["schedule"]["timezone"]) for one in made["schedules"]] == [
        ("0 3 * * *", "Europe/Berlin")
    ]
    assert str(ROOT) not in json.dumps(made)
    assert str(place.root) not in json.dumps(made)
    assert place.specflow("undeploy", f"retrain/{kind}")["removed"]
