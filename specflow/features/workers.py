"""Shards made by several processes, each with the target loaded. Which process makes a shard changes no byte of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from specflow.features.engine import CaptureJob
from specflow.features.making import Notes, ShardMaker, ShardTask
from specflow.features.probes import ProbeFailure
from specflow.features.worker import serve
from specflow.targets.target import Target

END_SECONDS = 3.0
PRELOADED = (
    "specflow.features.fork_origin",
    "specflow.features.making",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
)


class WorkerFailed(Exception):
    """A worker process ended early; the message names it, its shards and its log."""


@dataclass(slots=True)
class _Worker:
    name: str
    process: BaseProcess
    connection: Connection
    log: Path
    shards: list[int] = field(default_factory=list)
    """Given to it and not yet committed: at most one being computed and one being written."""
    finished: bool = False

    def failed(self, how: str) -> WorkerFailed:
        shards = " and ".join(f"shard {number}" for number in self.shards)
        doing = f"at work on {shards}" if shards else "before its first shard"
        return WorkerFailed(f"{self.name} {how}, {doing}; finished shards are kept; its log: {self.log}")

    def end(self) -> None:
        self.process.terminate()
        self.process.join(END_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()


def make_shards(
    job: CaptureJob,
    tasks: Iterable[ShardTask],
    *,
    workers: int,
    logs: Path,
    advance: Callable[[int], None],
    retried: Callable[[int], None],
    target: Target | None = None,
) -> Iterator[tuple[int, Notes]]:
    """Number and notes of every task's shard, as they are committed; one worker is this process, with ``target``.

    Raises :class:`WorkerFailed`, or what :class:`ShardMaker` raises; whatever has been committed by then stays.
    Closing the iterator ends the processes, and so does the end of this one, however it comes.
    """
    if workers == 1:
        with closing(ShardMaker(job, advance=advance, target=target)) as maker:
            yield from maker.make(tasks)
            retried(maker.retried)
        return
    logs.mkdir(parents=True, exist_ok=True)
    running: list[_Worker] = []
    try:
        running.extend(_start(job, number, workers, logs) for number in range(workers))
        remaining = iter(tasks)
        while working := [w for w in running if not w.finished]:
            ready = wait([w.connection for w in working])
            for worker in (w for w in working if w.connection in ready):
                committed = _answer(worker, _message(worker), remaining, advance, retried)
                if committed:
                    yield committed
    finally:
        for worker in running:
            worker.end()


def _start(job: CaptureJob, number: int, workers: int, logs: Path) -> _Worker:
    log = logs / f"worker-{number + 1}.log"
    if sys.platform == "linux" and job.device == "cpu":
        # From a process that only imports: no thread runs in it, and what it imported is in memory once for all.
        server = get_context("forkserver")
        server.set_forkserver_preload(list(PRELOADED))
        ours, theirs = server.Pipe()
        process: BaseProcess = server.Process(target=serve, args=(job, number, theirs, log), daemon=True)
    else:
        spawn = get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=serve, args=(job, number, theirs, log), daemon=True)
    process.start()
    theirs.close()
    return _Worker(f"worker {number + 1} of {workers} (process {process.pid})", process, ours, log)


def _message(worker: _Worker) -> tuple[Any, ...] | None:
    """The next message; none when the process has ended."""
    try:
        message: tuple[Any, ...] = worker.connection.recv()
    except (EOFError, OSError):
        return None
    return message


def _answer(
    worker: _Worker,
    message: tuple[Any, ...] | None,
    tasks: Iterator[ShardTask],
    advance: Callable[[int], None],
    retried: Callable[[int], None],
) -> tuple[int, Notes] | None:
    match message:
        case ("next",):
            task = next(tasks, None)
            if task is not None:
                worker.shards.append(task.number)
            with suppress(OSError):  # it has just been killed: its end of the pipe will say so
                worker.connection.send(task)
        case ("advance", tokens):
            advance(tokens)
        case ("retried", requests):
            retried(requests)
        case ("committed", shard, notes):
            worker.shards.remove(shard)
            return shard, notes
        case ("failed", "ProbeFailure", text):
            raise ProbeFailure(text)
        case ("failed", kind, text):
            raise worker.failed(f"failed ({kind}: {text})")
        case _:
            worker.process.join(END_SECONDS)
            if worker.process.exitcode != 0 or worker.shards:
                raise worker.failed(_how_it_ended(worker.process.exitcode))
            worker.finished = True
    return None


def _how_it_ended(code: int | None) -> str:
    if code == -9:
        return "was killed (signal 9), perhaps because memory ran out: fewer workers need less"
    if code is not None and code < 0:
        return f"ended by signal {-code}"
    return f"ended with code {code}"
