"""A Prefect server for the length of one run, or the one that ``PREFECT_API_URL`` names."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from filelock import FileLock, Timeout

from specflow.workflow.orphans import die_with_parent, end_group, start_group
from specflow.workflow.server_database import copy_template, keep_template, template

START_SECONDS = 180.0
ANSWER_SECONDS = 10.0
"""How long a server that was there before may take to answer."""
SERVICES_NOT_NEEDED = ("SCHEDULER", "LATE_RUNS", "PAUSE_EXPIRATIONS", "CANCELLATION_CLEANUP", "FOREMAN", "TRIGGERS")


class ServerError(Exception):
    """The Prefect server did not start, or the one that was named does not answer."""


@dataclass(frozen=True, slots=True)
class Server:
    api_url: str
    log: Path
    process: subprocess.Popen[bytes] | None = None
    """None for a server that was there before; one of ours ends with the run."""
    migrating: Path | None = None
    """Home of a server that starts with no database."""

    @property
    def ours(self) -> bool:
        return self.process is not None

    def wait_until_ready(self) -> None:
        """Raises ``ServerError`` if the server ends or does not answer in time."""
        if not self.ours:
            self._require_answer()
            return
        deadline = time.monotonic() + START_SECONDS
        with httpx.Client(trust_env=False) as client:
            while self.process and time.monotonic() < deadline:
                if self.process.poll() is not None:
                    raise ServerError(f"the Prefect server ended while starting; see {self.log}")
                with suppress(httpx.TransportError):
                    if client.get(f"{self.api_url}/health", timeout=10.0).status_code == 200:
                        if self.migrating:
                            keep_template(self.migrating, template())
                        return
                time.sleep(0.1)
        raise ServerError(f"the Prefect server did not answer within {START_SECONDS:.0f} s; see {self.log}")

    def _require_answer(self) -> None:
        try:
            status = httpx.get(f"{self.api_url}/health", timeout=ANSWER_SECONDS, follow_redirects=True).status_code
            # A server that asks for a key is there; Prefect itself sends it.
            found = "" if status in (200, 401, 403) else f"it answers {status} to /health"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            found = str(error) or type(error).__name__
        if found:
            raise ServerError(
                f"no Prefect server at {self.api_url}, which PREFECT_API_URL names: {found}; start it, correct the "
                "address (it ends in /api), or unset PREFECT_API_URL for a server of this run's own"
            )


@contextmanager
def prefect_server(home: Path, *, log: Path) -> Iterator[Server]:
    """A server to report to, perhaps still starting. One of ours keeps its history in ``home``, and ends here."""
    existing = os.environ.get("PREFECT_API_URL")
    if existing:
        yield Server(existing, log)
        return
    with ExitStack() as stack:
        home = stack.enter_context(_owned_home(home))
        migrates = copy_template(home, template())
        port = free_port()
        for_one_run = {f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in SERVICES_NOT_NEEDED}
        for_one_run["PREFECT_SERVER_REGISTER_BLOCKS_ON_START"] = "false"
        environment = server_environment(home, port) | for_one_run
        process = start_group(server_command(port), log=log, environment=environment)
        stack.callback(end_group, process)
        yield Server(f"http://127.0.0.1:{port}/api", log, process, home if migrates else None)


def server_environment(home: Path, port: int) -> dict[str, str]:
    """For a server, and for what reports to it: nothing of the user's own Prefect home is read or written."""
    return {
        **os.environ,
        "PREFECT_HOME": str(home),
        "PREFECT_PROFILES_PATH": str(home / "profiles.toml"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_UI_STATIC_DIRECTORY": str(home / "ui"),
    }


def server_command(port: int) -> list[str]:
    return [sys.executable, "-m", "specflow.workflow.server", str(port)]


@contextmanager
def _owned_home(home: Path) -> Iterator[Path]:
    """``home``, or a temporary directory while another run uses it: two servers would lock one database."""
    home.mkdir(parents=True, exist_ok=True)
    lock = FileLock(home / "run.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        with tempfile.TemporaryDirectory(prefix="specflow-prefect-", ignore_cleanup_errors=True) as other:
            yield Path(other)
        return
    try:
        yield home
    finally:
        lock.release()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_in_use(port: int) -> bool:
    """Whether something on this machine listens there already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def main(port: int) -> None:
    """Serve until standard input closes."""
    die_with_parent()
    import uvicorn

    uvicorn.run(
        "prefect.server.api.server:create_app",
        factory=True,
        host="127.0.0.1",
        port=port,
        log_level="error",
        lifespan="on",
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
