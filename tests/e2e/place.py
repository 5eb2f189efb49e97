"""A Prefect server and worker of their own, for the tests that need real ones."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.commands import ROOT, processes_of, run

LIMIT = 600
SECRET = "planted-" + hashlib.sha256(b"specflow").hexdigest()


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
        return json.loads(self._run(*words, "--json", code=code).stdout)

    def failing(self, *words: str) -> str:
        """What a command says that ends with code 1."""
        done = self._run(*words, code=1)
        return done.stdout + done.stderr

    def _run(self, *words: str, code: int) -> subprocess.CompletedProcess[str]:
        home = ("--home", str(self.home))
        done = run(*words, *home, limit=LIMIT, cwd=self.root, SPECFLOW_TEST_SECRET=SECRET, COLUMNS="200")
        assert done.returncode == code, done.stdout + done.stderr + self.logs()
        return done

    def logs(self) -> str:
        return "\n".join(f"--- {path}\n{path.read_text()[-3000:]}" for path in sorted(self.home.glob("*.log")))

    def api(self, path: str, **body: Any) -> Any:
        """What the server answers to a request with a body."""
        return self._answer("POST", path, json=body)

    def api_get(self, path: str) -> Any:
        return self._answer("GET", path)

    def _answer(self, method: str, path: str, **more: Any) -> Any:
        answer = httpx.request(method, f"{self.api_url}/{path}", timeout=60.0, trust_env=False, **more)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self._server_state()['port']}/api"

    def _server_state(self) -> Any:
        return json.loads((self.home / "server.json").read_text())

    def state(self, run: dict[str, Any]) -> str:
        """Type of the state of a run."""
        (found,) = self.api("flow_runs/filter", flow_runs={"id": {"any_": [run["id"]]}})
        return str(found["state"]["type"])

    def worker(self) -> int | None:
        """Process number of the worker, where one runs."""
        number: int | None = self._server_state()["children"].get("worker")
        return number

    def runs(self) -> list[dict[str, Any]]:
        """Runs that began, the first first."""
        found = self.api("flow_runs/filter", sort="START_TIME_ASC")
        return [run for run in found if run["start_time"]]

    def states(self, run: dict[str, Any]) -> dict[str, str]:
        """How each task of a run ended."""
        tasks = self.api("task_runs/filter", flow_runs={"id": {"any_": [run["id"]]}})
        return {task["name"].partition("-")[0]: task["state"]["name"] for task in tasks}

    def stages(self) -> list[psutil.Process]:
        """Processes of stages."""
        found = processes_of(self.root)
        return [process for process in found if "specflow.workflow.worker" in " ".join(process.info["cmdline"])]


@contextmanager
def running(place: Place) -> Iterator[None]:
    """The server and the worker of a place; nothing of them is left afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        place.specflow("server", "start", "--port", "0")
        try:
            yield
        finally:
            place.specflow("server", "stop")
    assert processes_of(place.root) == []
    assert not (place.home / "server.json").exists()


def until(place: Place, condition: Callable[[], Any], seconds: float = LIMIT / 2) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited too long\n" + place.logs()
        time.sleep(0.5)
    return found
