"""A real Prefect server and worker: scheduled runs, a worker that is killed, many tasks at once, no secret anywhere."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import ROOT, run
from tests.e2e.place import LIMIT, SECRET, Place, running, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT)]


@contextmanager
def receiver() -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """A service that is told how runs end: its port, and path and body of every request."""
    told: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append((self.path, self.rfile.read(int(self.headers["Content-Length"])).decode()))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, told
        server.shutdown()


BLOCK = """
import sys
from prefect.blocks.notifications import CustomWebhookNotificationBlock as Block
url = f"http://127.0.0.1:{sys.argv[1]}/{{{{key}}}}"
secret = sys.stdin.read()
Block(name="receiver", url=url, json_data={"text": "{{subject}} {{body}}"}, secrets={"key": secret}).save("receiver")
"""


def make_block(place: Place, port: int) -> None:
    client = {**os.environ, "PREFECT_API_URL": place.api_url, "PREFECT_HOME": str(place.root / "client")}
    subprocess.run([sys.executable, "-c", BLOCK, str(port)], env=client, input=SECRET, text=True, check=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("deploy"))
    with running(made), receiver() as (port, made.told):
        make_block(made, port)
        yield made


def deploy(place: Place, *words: str) -> Any:
    found = place.specflow("deploy", "full-pipeline", "--config", str(place.config), *words)
    return found["deployments"][0]


def completed(place: Place) -> list[dict[str, Any]]:
    return [run for run in place.runs() if run["state"]["type"] == "COMPLETED"]


def test_two_scheduled_runs_complete_and_the_second_finds_everything(place: Place) -> None:
    assert place.specflow("server", "status")["running"]
    assert deploy(place, "--interval", "15", "--dry-run")["change"] == "create"
    assert place.specflow("deployments")["deployments"] == []
    assert deploy(place, "--interval", "15")["change"] == "create"
    assert deploy(place, "--interval", "15") == {
        "name": "full-pipeline/smoke",
        "change": "unchanged",
        "differences": [],
    }
    first, second = until(place, lambda: len(completed(place)) >= 2 and completed(place)[:2])
    # States of tasks travel as events, and may arrive after that of their run.
    until(place, lambda: set(place.states(second).values()) == {"Cached"}, 60)
    assert len(place.states(second)) == 9
    assert "Completed" in place.states(first).values()
    assert first["parameters"] == {
        "flow": str(ROOT / "flows/full-pipeline.yaml"),
        "config": str(place.config),
        "overrides": [],
    }
    listed = place.specflow("deployments")["deployments"]
    assert [one["name"] for one in listed] == ["full-pipeline/smoke"]
    assert listed[0]["last"] in ("Completed", "Running")
    assert listed[0]["next"] is not None
    # Without an interval: the schedule is gone.
    change = deploy(place)
    assert change["change"] == "update"
    assert change["differences"] == ["schedule {'interval': 15.0} -> None"]
    # One that began before the schedule went may still run.
    assert place.specflow("undeploy", "full-pipeline/smoke", "--cancel")["removed"]
    assert not place.specflow("undeploy", "full-pipeline/smoke", code=1)["removed"]


def test_a_cancelled_run_and_a_killed_worker_in_training_lose_nothing(place: Place) -> None:
    settings = ["--set", "drafters.*.train.checkpoint_every=5", "--set", "drafters.*.train.steps=150"]
    before = set(place.store.glob("drafter/*"))

    cancelled = start_training(place, [*settings[:-1], "drafters.*.train.steps=20000"])  # minutes
    assert place.failing("undeploy", "full-pipeline/long").count(cancelled["name"]) == 1
    assert [one["paused"] for one in place.specflow("deployments")["deployments"]] == [False]
    assert place.specflow("undeploy", "full-pipeline/long", "--cancel")["removed"]
    assert place.state(cancelled) == "CANCELLED"
    until(place, lambda: not place.stages(), 30)
    assert set(place.store.glob("drafter/*")) == before

    run = start_training(place, settings)
    first = place.worker()
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(place, lambda: place.worker() not in (first, None))
    until(place, lambda: place.state(run) == "COMPLETED")
    (made,) = set(place.store.glob("drafter/*")) - before
    assert (made / "artifact.json").exists()
    assert list(place.store.glob(f".work/drafter-{made.name[:12]}*")) == []
    kinds = {"target", "conversations", "tokens", "features", "drafter", "export"}
    assert kinds <= {path.name for path in place.store.iterdir()}
    # Only those of the supervisor, server and worker are left of both workers.
    until(place, lambda: not place.stages(), 30)
    weights = hashlib.sha256((made / "drafter" / "model.safetensors").read_bytes()).hexdigest()
    assert weights == uninterrupted(place, settings)


def start_training(place: Place, settings: list[str]) -> Any:
    """Deploy the flow, start a run of it by hand, and wait until it has made a checkpoint."""
    begun = time.time()
    deploy(place, *settings, "--name", "long")
    (deployment,) = place.api("deployments/filter", deployments={"name": {"any_": ["long"]}})
    run = place.api(f"deployments/{deployment['id']}/create_flow_run")

    def checkpoint() -> bool:
        found = place.store.glob(".work/drafter-*/scratch/training/*")
        return any(path.stat().st_mtime > begun for path in found)

    until(place, checkpoint)
    return run


def uninterrupted(place: Place, settings: list[str]) -> str:
    """Hash of the weights that a run gives which nobody kills."""
    other = place.root / "other"
    words = ("run", "full-pipeline", "--config", place.config, "--store", other, "--only", "train", "--upstream")
    done = run(*words, *settings, limit=LIMIT, cwd=place.root)
    assert done.returncode == 0, done.stdout + done.stderr
    (weights,) = other.glob("drafter/*/drafter/model.safetensors")
    return hashlib.sha256(weights.read_bytes()).hexdigest()


def test_runs_are_told_and_the_secret_of_the_block_is_nowhere(place: Place) -> None:
    assert len(place.told) >= 2
    assert {path for path, _ in place.told} == {f"/{SECRET}"}
    assert "full-pipeline-smoke" in place.told[0][1]
    assert "9 made" in place.told[0][1]
    assert "9 cached" in place.told[1][1]
    found = [path for path in place.root.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert found == []


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.heavy)])
def test_many_tasks_at_once_lose_no_state(place: Place, count: int) -> None:
    code = Path(__file__).with_name("many_tasks.py")
    client = {**os.environ, "PREFECT_API_URL": place.api_url, "PREFECT_HOME": str(place.root / "client")}
    done = subprocess.run(
        [sys.executable, str(code), str(count)],
        env=client,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout + done.stderr + place.logs()
    run = json.loads(done.stdout.splitlines()[-1])["flow_run"]

    def ended() -> list[str]:
        tasks = []
        for offset in range(0, count, 200):
            tasks += place.api("task_runs/filter", flow_runs={"id": {"any_": [run]}}, limit=200, offset=offset)
        return [task["state"]["name"] if task["state"] else "not yet" for task in tasks]

    until(place, lambda: len(ended()) == count and set(ended()) == {"Completed"}, 60)
    # A write that finds the database locked is asked again; what counts is that every state has arrived.
