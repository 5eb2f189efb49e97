"""What a stage's process tells the process that started it: one JSON object per line on a pipe."""

from __future__ import annotations

import json
import os
import select
import threading
from collections.abc import Callable, Iterator
from typing import Any

Event = dict[str, Any]
"""``event`` is one of: log, progress_start, progress, progress_end, waiting, damaged,
outdated, cached, made, error."""


class Sender:
    """The stage's end. A reader that is gone is no error: the watchdog ends the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, **fields}, ensure_ascii=False, default=str) + "\n"
        data = line.encode()
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except BrokenPipeError:
                return


def receive(descriptor: int, *, alive: Callable[[], bool], poll_seconds: float = 0.25) -> Iterator[Event]:
    """Events until the pipe closes, or until the sender is dead although something else holds its end open."""
    pending = b""
    while True:
        # Asked before the wait: what a sender wrote before it died is still in the pipe, and is read to its end.
        running = alive()
        readable, _, _ = select.select([descriptor], [], [], poll_seconds if running else 0.0)
        if not readable:
            if not running:
                return
            continue
        data = os.read(descriptor, 1 << 16)
        if not data:
            return
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            yield json.loads(line)
