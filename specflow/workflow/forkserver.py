"""Stage processes that find torch and transformers imported: one process imports them and forks for every stage.

``python -m specflow.workflow.forkserver LOGS DESCRIPTOR MODULE...``; the other end is ``launching.py``. Forking is
safe only from a process that runs no other thread, so this one starts none, computes nothing, and counts before it
offers itself. A stage's process is a session and group of its own and watches its own pipe, as a new one would be.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from specflow.workflow import worker
from specflow.workflow.orphans import signal_group

LOOK_SECONDS = 0.25
ORDER_BYTES = 1 << 16
ORDER_DESCRIPTORS = 4
"""Standard input, log, pipe of the events, pipe of the status."""


def main(arguments: Sequence[str]) -> int:
    """Serve until the other end closes; in a forked process, be the worker instead."""
    control = socket.socket(fileno=int(arguments[1]))
    control.set_inheritable(False)
    with _ending_with_parent():
        _preload(arguments[2:])
        obstacle = _obstacle()
    control.send(json.dumps({"obstacle": obstacle}).encode())
    order = None if obstacle else _serve(control)
    return worker.main(order) if order else 0


@contextmanager
def _ending_with_parent() -> Iterator[None]:
    """End this process when standard input closes; a timer, because a thread would make forking unsafe."""

    def look(number: int, frame: FrameType | None) -> None:
        if select.select([0], [], [], 0.0)[0]:
            os._exit(1)

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _preload(modules: Sequence[str]) -> None:
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:  # the stage that needs it will say so
            traceback.print_exc()
    gc.collect()
    gc.freeze()  # a collection in a stage's process would copy every page of what is shared


def _obstacle() -> str:
    """Why no process may be forked from here; empty if nothing speaks against it."""
    version = getattr(sys.modules.get("torch"), "version", None)
    for platform in ("cuda", "hip", "xpu"):
        if getattr(version, platform, None):
            return f"torch is built for {platform}, which a forked process may not be able to use"
    # Libraries that handle forks, as OpenBLAS does, stop their threads for one; whoever is left does not.
    if (trial := os.fork()) == 0:
        os._exit(0)
    os.waitpid(trial, 0)
    threads = len(list(Path("/proc/self/task").iterdir()))
    return f"{threads} threads run after the imports, expected 1" if threads != 1 else ""


def _serve(control: socket.socket) -> list[str] | None:
    """Fork for every order; returns None when the other end closes, and in a forked process its arguments."""
    running: dict[int, int] = {}
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(waker)
    sources: list[socket.socket | int] = [control, wake]
    while True:
        readable, _, _ = select.select(sources, [], [])
        if wake in readable:
            os.read(wake, 4096)
            _report_ended(running)
        if control not in readable:
            continue
        data, descriptors, _, _ = socket.recv_fds(control, ORDER_BYTES, ORDER_DESCRIPTORS)
        if not data:
            return None
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (wake, waker, *running.values()):
                os.close(descriptor)
            control.close()
            return _become(json.loads(data), descriptors)
        running[pid] = descriptors.pop()
        for descriptor in descriptors:
            os.close(descriptor)


def _become(spec: str, descriptors: list[int]) -> list[str]:
    """Make the forked process what ``start_group`` makes of a new one; returns the worker's arguments."""
    standard_input, log, events, status = descriptors
    os.setsid()
    os.dup2(standard_input, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.write(status, f"pid {os.getpid()}\n".encode())
    for descriptor in (standard_input, log, status):
        os.close(descriptor)
    return [spec, str(events)]


def _report_ended(running: dict[int, int]) -> None:
    """Say how the processes ended that did, after ending what they left behind."""
    for pid, status in list(running.items()):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            continue
        # Before it is reaped, so that its number still stands for its own group.
        signal_group(pid, signal.SIGKILL)
        _, code = os.waitpid(pid, 0)
        with suppress(BrokenPipeError):  # nobody asks any more
            os.write(status, f"code {os.waitstatus_to_exitcode(code)}\n".encode())
        os.close(running.pop(pid))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
