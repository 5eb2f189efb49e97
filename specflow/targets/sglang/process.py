"""An SGLang server started by us, and ended with what started it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import httpx

from specflow.targets.retrying import ServerError
from specflow.targets.sglang import attached

POLL_SECONDS = 0.5
END_SECONDS = 10.0
TAIL_LINES, TAIL_BYTES = 25, 20_000
LOCAL = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::", "")


class SglangProcess:
    """``with SglangProcess(python, arguments, log=...) as server``: ready inside, gone after.

    ``arguments`` follow ``python -m sglang.launch_server``, without host and port (none: a free one). The server runs
    in the directory of its log, so that no module of the current directory takes the place of one of SGLang's.
    ``environment``: variables of the server, beside those of this process. ``on_wait`` is called now and then until it
    is ready. Raises :class:`ServerError` with the end of the log if it does not start.
    """

    def __init__(
        self,
        python: Path,
        arguments: Sequence[str],
        *,
        log: Path,
        start_timeout: float,
        host: str = LOCAL,
        port: int | None = None,
        on_wait: Callable[[], None] = lambda: None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log, self._timeout, self._on_wait = log, start_timeout, on_wait
        self._environment = environment or {}
        port = port or _free_port()
        # A server that listens everywhere also listens here.
        self.url = f"http://{LOCAL if host in EVERYWHERE else host}:{port}"
        self.command = [str(python), "-m", "sglang.launch_server", "--host", host, "--port", str(port), *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SglangProcess:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        starter = [sys.executable, "-I", attached.__file__, str(os.getpid())]
        with self.log.open("wb", buffering=0) as stream:
            self._process = subprocess.Popen(
                [*starter, *self.command],
                cwd=self.log.parent,
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """End the server and every process of its group; safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        _signal_group(process.pid, signal.SIGTERM)
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
        finally:  # also when a second Ctrl-C comes while we wait
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()

    @property
    def running(self) -> bool:
        """Whether it was started and not ended by us."""
        return self._process is not None

    def died(self) -> str | None:
        """How it ended and the last lines of its log; none while it runs."""
        assert self._process is not None
        code = self._process.poll()
        if code is None:
            return None
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"the server ended with {how}; the end of {self.log}:\n{self._tail()}"

    def _wait(self) -> None:
        end = time.monotonic() + self._timeout
        with httpx.Client(trust_env=False, timeout=30.0) as http:
            while time.monotonic() < end:
                self._on_wait()
                if said := self.died():
                    raise ServerError(said)
                with suppress(httpx.HTTPError):
                    if http.get(f"{self.url}/health_generate").is_success:
                        return
                time.sleep(POLL_SECONDS)
        late = f"the server is not ready after {self._timeout:.0f} s (start_timeout)"
        raise ServerError(f"{late}; the end of {self.log}:\n{self._tail()}")

    def _tail(self) -> str:
        text = self.log.read_bytes()[-TAIL_BYTES:].decode("utf-8", errors="replace")
        return "\n".join(text.splitlines()[-TAIL_LINES:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
