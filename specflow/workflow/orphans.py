"""Processes that never outlive the one that started them, however that one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

TERMINATE_SECONDS = 3.0


def start_group(
    command: Sequence[str], *, log: Path, descriptors: Sequence[int] = (), environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in its own process group: standard input is the watchdog's pipe, output goes to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab", buffering=0) as stream:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=subprocess.STDOUT,
            pass_fds=descriptors,
            start_new_session=True,
            env=None if environment is None else dict(environment),
        )


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and all its descendants that stayed in its group; safe to call twice."""
    if process.poll() is None:
        signal_group(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(TERMINATE_SECONDS)
    # Also after a normal end: the stage may have left children.
    signal_group(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin:
        process.stdin.close()


def signal_group(group: int, number: signal.Signals) -> None:
    """Signal every process of a group; one that is gone is no error."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def die_with_parent() -> None:
    """Kill this process group as soon as standard input closes, which also a killed parent cannot prevent."""
    descriptor = os.dup(0)
    os.set_inheritable(descriptor, False)
    # Nothing that the stage starts may hold the pipe or read from it.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)

    def watch() -> None:
        while os.read(descriptor, 1):
            pass
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, name="watchdog", daemon=True).start()
