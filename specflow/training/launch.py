"""Several ranks on this machine, as processes of torch's own spawning, with gloo or NCCL between them.

The first rank's messages and progress come back through a pipe. Nothing outlives the call: when one process ends
otherwise than it should, the others are ended, and when this process dies they see their pipe close.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from specflow.training.job import Job
from specflow.training.loop import Monitor
from specflow.training.messages import Sending, Shown

LOOK_SECONDS = 0.1
PATIENCE = timedelta(minutes=30)
"""How long a rank waits for another, for example during an evaluation."""


class RankFailed(RuntimeError):
    """A rank ended before its time; the message says which and how."""


def train_on_ranks(job: Job, monitor: Monitor, *, ranks: int) -> None:
    """Run ``train_worker`` in ``ranks`` processes; returns when all have ended well.

    Raises ``TrainingDiverged``, ``DamagedShard`` and ``StorageError`` as the ranks do, else ``RankFailed``; no process
    is left then either.
    """
    import torch.multiprocessing as processes
    from torch.multiprocessing.spawn import start_processes

    spawn = processes.get_context("spawn")
    pairs = [spawn.Pipe() for _ in range(ranks)]
    with tempfile.TemporaryDirectory(prefix="specflow-ranks-") as meeting:
        path = str(job.write())
        theirs = [there for _, there in pairs]
        start: Any = start_processes
        context = start(_rank, args=(ranks, path, meeting, theirs), nprocs=ranks, join=False, start_method="spawn")
        for there in theirs:
            there.close()
        try:
            _follow(context, [here for here, _ in pairs], monitor)
        finally:
            for process in context.processes:
                if process.is_alive():
                    process.kill()
            for process in context.processes:
                process.join()
            for here, _ in pairs:
                here.close()


def _follow(context: Any, pipes: list[Connection], monitor: Monitor) -> None:
    from torch.multiprocessing.spawn import ProcessException

    errors: dict[int, list[str]] = {}
    with ExitStack() as bars:
        shown = Shown(monitor, bars)
        done = False
        failure: Exception | None = None
        while not done and failure is None:
            try:
                done = context.join(timeout=LOOK_SECONDS, grace_period=2.0)
            except ProcessException as error:
                failure = error
            for rank, pipe in enumerate(pipes):  # also after the end: what was sent last
                errors.update(_drained(rank, pipe, shown))
    if failure is not None:
        raise _failure(context, errors, failure)


def _drained(rank: int, pipe: Connection, shown: Shown) -> dict[int, list[str]]:
    """Handle what one rank has sent; returns its error, if it sent one."""
    try:
        while pipe.poll():
            kind, *values = pipe.recv()
            if kind == "error":
                return {rank: values}
            shown.handle(kind, values)
    except (EOFError, OSError):  # the process is gone
        pass
    return {}


def _failure(context: Any, errors: Mapping[int, list[str]], failure: Exception) -> Exception:
    from specflow.features.location import StorageError
    from specflow.features.shard import DamagedShard
    from specflow.training.guards import TrainingDiverged

    for known in (TrainingDiverged, DamagedShard, StorageError):
        if said := [text for kind, text in errors.values() if kind == known.__name__]:
            return known(said[0])
    first = getattr(failure, "error_index", 0)
    codes = [process.exitcode or 0 for process in context.processes]
    # A rank that was killed is the cause; the others only lost their partner, and SIGTERM is how they were stopped.
    killed = [rank for rank, code in enumerate(codes) if code < 0 and (rank == first or code != -signal.SIGTERM)]
    if killed:
        return RankFailed(
            f"rank {killed[0]} of {len(codes)} was ended by signal {-codes[killed[0]]}; the others were stopped. Run "
            "the stage again: it continues from the newest checkpoint"
        )
    kind, text = errors.get(first) or next(iter(errors.values()), ["error", str(failure)])
    return RankFailed(f"rank {first} of {len(codes)} failed: {kind}: {text}")


def _rank(rank: int, ranks: int, job: str, meeting: str, pipes: list[Connection]) -> None:
    """One process: meets the others through a file, trains, says why if it cannot."""
    import torch
    import torch.distributed as dist

    from specflow.training.worker import train_worker

    pipe = pipes[rank]
    for other, unused in enumerate(pipes):
        if other != rank:
            unused.close()
    _end_with(pipe)
    dist.init_process_group(
        "nccl" if torch.cuda.is_available() else "gloo",
        init_method=f"file://{meeting}/store",
        rank=rank,
        world_size=ranks,
        timeout=PATIENCE,
    )
    try:
        train_worker(Job.read(Path(job)), Sending(pipe))
    except Exception as error:
        pipe.send(("error", type(error).__name__, str(error)))
        raise
    dist.destroy_process_group()


def _end_with(pipe: Connection) -> None:
    """End this process when the other end of the pipe closes; nothing is ever sent this way."""

    def watch() -> None:
        try:
            pipe.recv_bytes()
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=watch, name="watchdog", daemon=True).start()
