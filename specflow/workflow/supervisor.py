"""Keeps a Prefect server and a worker running: ``python -m specflow.workflow.supervisor HOME PORT``.

Whichever of them ends, or is killed, is started again; both end with this process, however it ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import psutil
from filelock import FileLock, Timeout

from specflow.workflow.local_server import POOL, STATE, ServerState
from specflow.workflow.orphans import end_group, start_group
from specflow.workflow.server import server_command, server_environment
from specflow.workflow.server_database import copy_template, template

LOOK_SECONDS = 0.5
SETTINGS = {
    "PREFECT_WORKER_QUERY_SECONDS": "2",
    "PREFECT_WORKER_PREFETCH_SECONDS": "2",
    "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "5",
    "PREFECT_API_REQUEST_TIMEOUT": "120",
    # What a run says is shown in the UI; the server has a level of its own.
    "PREFECT_LOGGING_LEVEL": "INFO",
    # Leases on disk: a server that was started again knows who holds a device.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}


@dataclass(slots=True)
class Child:
    """One process that is to run, and how often in a row it ended soon."""

    name: str
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    next_start: float = 0.0
    failures: int = 0
    started: float = field(default=0.0)

    def keep_running(self, home: Path, environment: dict[str, str]) -> bool:
        """Start it if it does not run; whether anything changed. A process that keeps ending is given more time."""
        if self.process is not None and self.process.poll() is None:
            return False
        now = time.monotonic()
        if self.process is not None:
            print(f"{time.strftime('%F %T')} {self.name} ended with code {self.process.returncode}", flush=True)
            end_group(self.process)  # what it left in its group
            self.process = None
            self.failures = self.failures + 1 if now - self.started < 30 else 0
            self.next_start = now + min(60.0, 2.0**self.failures - 1)
        if now < self.next_start:
            return False
        self.started = now
        self.process = start_group(self.command, log=home / f"{self.name}.log", environment=environment)
        return True


def main(home: Path, port: int) -> int:
    try:
        with FileLock(home / "run.lock", timeout=0):
            _supervise(home, port)
    except Timeout:
        print(f"another server runs in {home}", flush=True)
        return 1
    return 0


def _supervise(home: Path, port: int) -> None:
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    copy_template(home, template())
    environment = server_environment(home, port) | SETTINGS
    worker = [sys.executable, "-m", "specflow.workflow.pool_worker", POOL]
    children = [Child("server", server_command(port)), Child("worker", worker)]
    try:
        while not stopping.is_set():
            changed = [child.keep_running(home, environment) for child in children]
            if any(changed):
                _write_state(home, port, children)
            stopping.wait(LOOK_SECONDS)
    finally:
        for child in reversed(children):
            if child.process is not None:
                end_group(child.process)
        (home / STATE).unlink(missing_ok=True)


def _write_state(home: Path, port: int, children: Sequence[Child]) -> None:
    state = ServerState(
        pid=os.getpid(),
        created=psutil.Process().create_time(),
        port=port,
        children={child.name: child.process.pid for child in children if child.process is not None},
    )
    partial = home / f"{STATE}.partial"
    partial.write_text(state.model_dump_json(indent=1), encoding="utf-8")
    partial.replace(home / STATE)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
