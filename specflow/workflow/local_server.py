"""``specflow server``: a Prefect server and a process worker of one's own, started, found and stopped.

A supervisor (``supervisor.py``) holds both; this module starts it and reads what it writes to the home.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from pydantic import BaseModel, ValidationError

from specflow.workflow.server import START_SECONDS, ServerError, free_port, port_in_use

DEFAULT_HOME = Path("~/.specflow/server")
STATE = "server.json"
POOL = "specflow"
STOP_SECONDS = 30.0


class ServerState(BaseModel):
    """What runs in a home, as the supervisor writes it."""

    pid: int
    created: float
    """When the process was created, so that another one that got its number is not taken for it."""
    port: int
    pool: str = POOL
    children: dict[str, int] = {}
    """Processes by name: ``server``, ``worker``."""

    @property
    def ui_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def api_url(self) -> str:
        return f"{self.ui_url}/api"

    def runs(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            return bool(process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - self.created) < 1.0)
        except psutil.NoSuchProcess:
            return False


def read_state(home: Path) -> ServerState | None:
    """What runs in ``home``; none if nothing does."""
    try:
        state = ServerState.model_validate_json((home / STATE).read_bytes())
    except (OSError, ValidationError):
        return None
    return state if state.runs() else None


def start(home: Path, *, port: int = 0) -> ServerState:
    """Start the supervisor and wait until the server answers and the worker asks it for work.

    ``port`` 0 is any free one. Raises ``ServerError`` where that fails; nothing then runs.
    """
    home.mkdir(parents=True, exist_ok=True)
    if port and port_in_use(port):
        raise ServerError(f"port {port} is in use; stop what uses it, or give another --port (0: any free one)")
    command = [sys.executable, "-m", "specflow.workflow.supervisor", str(home), str(port or free_port())]
    with (home / "supervisor.log").open("ab", buffering=0) as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    deadline = time.monotonic() + START_SECONDS
    try:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise ServerError(f"the supervisor ended while starting; see {home / 'supervisor.log'}")
            state = read_state(home)
            if state and state.pid == process.pid and healthy(state) and workers(state):
                return state
            time.sleep(0.2)
        raise ServerError(f"server and worker were not there within {START_SECONDS:.0f} s; see the logs in {home}")
    except BaseException:
        _end(process.pid)
        process.wait()
        raise


def stop(home: Path) -> bool:
    """End what runs in ``home``, with every run in it; whether there was anything."""
    state = read_state(home)
    if state is None:
        return False
    _end(state.pid)
    (home / STATE).unlink(missing_ok=True)
    return True


def _end(pid: int) -> None:
    """SIGTERM, and SIGKILL if that is not enough: the children die with the pipes that the supervisor holds."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        try:
            process.wait(STOP_SECONDS)
        except psutil.TimeoutExpired:
            process.kill()


def healthy(state: ServerState) -> bool:
    """Whether the server answers."""
    with suppress(httpx.HTTPError):
        return httpx.get(f"{state.api_url}/health", timeout=5.0, trust_env=False).status_code == 200
    return False


def workers(state: ServerState) -> list[dict[str, Any]]:
    """The workers that ask the pool for work, as Prefect knows them."""
    with suppress(httpx.HTTPError, ValueError):
        url = f"{state.api_url}/work_pools/{state.pool}/workers/filter"
        answer = httpx.post(url, json={}, timeout=5.0, trust_env=False)
        if answer.status_code == 200:
            return [worker for worker in answer.json() if worker.get("status") == "ONLINE"]
    return []
