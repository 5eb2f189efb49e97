"""A real Prefect server and worker: scheduled runs, a worker that is killed, many tasks at once, no secret anywhere."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 600
SECRET = "planted-" + hashlib.sha256(b"specflow").hexdigest()

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT)]


class Place:
    """A directory with a configuration, a store and the home of a server of its own."""

    def __init__(self, root: Path) -> None:
        self.root, self.home, self.store = root, root / "home", root / "artifacts"
        self.told: list[tuple[str, str]] = []
        """Path and body of every notification."""
        self.config = root / "configs" / "smoke.yaml"
        shutil.copytree(ROOT / "configs" / "prompts-smoke", root / "configs" / "prompts-smoke")
        text = (ROOT / "configs" / "smoke.yaml").read_text()
        self.config.write_text(
            text + "\noperations: {device: test-device, notify: custom-webhook/receiver, notify_on: always}\n"
        )

    def specflow(self, *words: str, code: int = 0) -> Any:
        """The JSON document that a command prints."""
        paths = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
        environment = {**os.environ, "PYTHONPATH": paths, "SPECFLOW_TEST_SECRET": SECRET}
        command = [sys.executable, "-m", "specflow", *words, "--home", str(self.home), "--json"]
        done = subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr + self.logs()
        return json.loads(done.stdout)

    def failing(self, *words: str) -> str:
        """What a command says that ends with code 1."""
        paths = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
        command = [sys.executable, "-m", "specflow", *words, "--home", str(self.home)]
        environment = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"}
        done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stdout + done.stderr

    def logs(self) -> str:
        return "\n".join(f"--- {path}\n{path.read_text()[-3000:]}" for path in sorted(self.home.glob("*.log")))

    def api(self, path: str, **body: Any) -> Any:
        port = json.loads((self.home / "server.json").read_text())["port"]
        answer = httpx.post(f"http://127.0.0.1:{port}/api/{path}", json=body, timeout=60.0, trust_env=False)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def state(self, run: dict[str, Any]) -> str:
        """Type of the state of a run."""
        (found,) = self.api("flow_runs/filter", flow_runs={"id": {"any_": [run["id"]]}})
        return str(found["state"]["type"])

    def worker(self) -> int | None:
        """Process number of the worker, where one runs."""
        number: int | None = json.loads((self.home / "server.json").read_text())["children"].get("worker")
        return number

    def runs(self) -> list[dict[str, Any]]:
        """Runs that began, the first first."""
        found = self.api("flow_runs/filter", sort="START_TIME_ASC")
        return [run for run in found if run["start_time"]]

    def states(self, run: dict[str, Any]) -> dict[str, str]:
        """How each task of a run ended."""
        tasks = self.api("task_runs/filter", flow_runs={"id": {"any_": [run["id"]]}})
        return {task["name"].partition("-")[0]: task["state"]["name"] for task in tasks}

    def processes(self) -> list[psutil.Process]:
        """Everything whose command line names this place."""
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if process.pid != os.getpid() and str(self.root) in " ".join(process.info["cmdline"] or ())
        ]

    def stages(self) -> list[psutil.Process]:
        """Processes of stages."""
        return [
            process for process in self.processes() if "specflow.workflow.worker" in " ".join(process.info["cmdline"])
        ]


def until(place: Place, condition: Callable[[], Any], seconds: float = LIMIT / 2) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited too long\n" + place.logs()
        time.sleep(0.5)
    return found


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
    api = f"http://127.0.0.1:{json.loads((place.home / 'server.json').read_text())['port']}/api"
    environment = {**os.environ, "PREFECT_API_URL": api, "PREFECT_HOME": str(place.root / "client")}
    subprocess.run([sys.executable, "-c", BLOCK, str(port)], env=environment, input=SECRET, text=True, check=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("deploy"))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        made.specflow("server", "start", "--port", "0")
        with receiver() as (port, made.told):
            make_block(made, port)
            yield made
        made.specflow("server", "stop")
    assert made.processes() == []
    assert not (made.home / "server.json").exists()


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
    paths = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    words = [
        "run",
        "full-pipeline",
        "--config",
        str(place.config),
        "--store",
        str(other),
        "--only",
        "train",
        "--upstream",
    ]
    subprocess.run(
        [sys.executable, "-m", "specflow", *words, *settings],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=place.root,
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=LIMIT,
    )
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
    port = json.loads((place.home / "server.json").read_text())["port"]
    code = Path(__file__).with_name("many_tasks.py")
    environment = {
        **os.environ,
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_HOME": str(place.root / "client"),
    }
    done = subprocess.run(
        [sys.executable, str(code), str(count)],
        env=environment,
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
