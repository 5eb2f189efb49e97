"""A worker process: makes the shards that its parent gives it, one after the other, until there are none."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from specflow.features.engine import CaptureJob

if TYPE_CHECKING:
    from specflow.features.making import ShardTask


def serve(job: CaptureJob, number: int, connection: Connection, log: Path) -> None:
    """The process's main function.

    Sends ``("next",)`` and receives a task or None; sends ``("advance", tokens)``, ``("committed", shard, notes)``,
    ``("retried", requests)``, and ``("failed", type, message)`` as its last word.
    """
    _end_with_parent()
    _print_to(log)
    try:
        from specflow.features.making import ShardMaker

        maker = ShardMaker(job, advance=lambda tokens: connection.send(("advance", tokens)), worker=number)
        with closing(maker):
            for shard, notes in maker.make(_tasks(connection)):
                connection.send(("committed", shard, notes))
            connection.send(("retried", maker.retried))
    except Exception as error:
        traceback.print_exc()
        connection.send(("failed", type(error).__name__, str(error)))
        sys.exit(1)


def _tasks(connection: Connection) -> Iterator[ShardTask]:
    while True:
        connection.send(("next",))
        task = connection.recv()
        if task is None:
            return
        yield task


def _end_with_parent() -> None:
    """End as soon as the parent has, which also a killed parent cannot prevent."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="watchdog", daemon=True).start()


def _print_to(log: Path) -> None:
    """Send all that is printed, also by libraries, to the worker's own log."""
    with log.open("ab", buffering=0) as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
