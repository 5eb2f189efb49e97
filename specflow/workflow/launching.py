"""Starting the process of a stage: forked from one that has the libraries imported, or a new one."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from specflow.workflow.orphans import TERMINATE_SECONDS, end_group, signal_group, start_group

KILLED = -signal.SIGKILL


class StageProcess(Protocol):
    """The leader of its own process group. Codes are those of ``subprocess``."""

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def end(self) -> None:
        """End the process and all its descendants that stayed in its group; safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class NewProcess:
    process: subprocess.Popen[bytes]

    def poll(self) -> int | None:
        return self.process.poll()

    def wait(self) -> int:
        return self.process.wait()

    def end(self) -> None:
        end_group(self.process)


@dataclass(slots=True)
class ForkedProcess:
    """A process of the fork server, which tells how it ended."""

    pid: int
    watchdog: int
    """Closing it kills the process, also when this one is killed."""
    status: int
    """Pipe from the fork server: how the process ended, or nothing more if the server is gone."""
    code: int | None = None

    def poll(self) -> int | None:
        return self._ask(0.0)

    def wait(self) -> int:
        code = self._ask(None)
        assert code is not None
        return code

    def end(self) -> None:
        if self.poll() is None:
            signal_group(self.pid, signal.SIGTERM)
            if self._ask(TERMINATE_SECONDS) is None:
                signal_group(self.pid, signal.SIGKILL)
                self.wait()
        for descriptor in (self.watchdog, self.status):
            if descriptor >= 0:
                os.close(descriptor)
        self.watchdog = self.status = -1

    def _ask(self, seconds: float | None) -> int | None:
        """The code, waited for up to ``seconds``."""
        if self.code is None and select.select([self.status], [], [], seconds)[0]:
            word, _, number = _line(self.status).partition(" ")
            if word != "code":  # the server was killed; it would have ended the group
                signal_group(self.pid, signal.SIGKILL)
            self.code = int(number) if word == "code" else KILLED
        return self.code


@dataclass(slots=True)
class Launcher:
    """Starts stages; without a fork server, or with one that is unfit or gone, as new processes."""

    control: socket.socket | None = None
    """To the fork server; None where there is none."""
    obstacle: str | None = None
    """Why nothing is forked, empty if nothing speaks against it; None until the fork server has said it."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, spec: Path, events: int, *, log: Path) -> StageProcess:
        """A worker on ``spec`` that writes events to the descriptor ``events`` and all it prints to ``log``."""
        with self._lock:
            forked = self._fork(self.control, spec, events, log=log) if self.control else None
            return forked or _new_process(spec, events, log=log)

    def _fork(self, control: socket.socket, spec: Path, events: int, *, log: Path) -> ForkedProcess | None:
        if self.obstacle is None:
            hello = control.recv(4096)
            self.obstacle = json.loads(hello)["obstacle"] if hello else "the fork server ended while it started"
        if self.obstacle:
            return None
        standard_input, watchdog = os.pipe()
        status, status_writer = os.pipe()
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab", buffering=0) as output, suppress(OSError):  # one that is gone gives no answer below
                descriptors = [standard_input, output.fileno(), events, status_writer]
                socket.send_fds(control, [json.dumps(str(spec)).encode()], descriptors)
        finally:
            os.close(standard_input)
            os.close(status_writer)
        word, _, number = _line(status).partition(" ")
        if word == "pid":
            return ForkedProcess(int(number), watchdog, status)
        self.obstacle = "the fork server ended"
        os.close(watchdog)
        os.close(status)
        return None


@contextmanager
def launcher(logs: Path, preloaded: Sequence[str]) -> Iterator[Launcher]:
    """A launcher for one run; with modules to preload it has a fork server, where the system can fork safely.

    The server imports while other things start; its command line names ``logs``, and so does that of every stage.
    """
    if not preloaded or sys.platform != "linux":
        yield Launcher()
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    module = "specflow.workflow.forkserver"
    with ours:
        with theirs:
            command = [sys.executable, "-u", "-m", module, str(logs), str(theirs.fileno()), *preloaded]
            server = start_group(command, log=logs / "fork-server.log", descriptors=(theirs.fileno(),))
        try:
            yield Launcher(ours)
        finally:
            end_group(server)


def _new_process(spec: Path, events: int, *, log: Path) -> NewProcess:
    command = [sys.executable, "-u", "-m", "specflow.workflow.worker", str(spec), str(events)]
    return NewProcess(start_group(command, log=log, descriptors=(events,)))


def _line(descriptor: int) -> str:
    """The next line of a pipe, without reading further; empty at its end."""
    line = b""
    while (byte := os.read(descriptor, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode()
