"""Chunks in several processes. Results come in the order of the chunks, whatever finishes first."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Protocol

from specflow.data.inputs.chunk import Report, Task, work
from specflow.data.processes import in_order, usable_cores

AHEAD = 2
"""Chunks per worker that are begun before their result is asked for."""


class Results(Protocol):
    def __call__(self, tasks: Sequence[Task]) -> Iterator[Report]: ...


def worker_count(asked: int | None, *, chunks: int) -> int:
    """As many as asked for, or one per core, but not more than the largest source has chunks."""
    return max(1, min(asked or usable_cores(), chunks))


@contextmanager
def working(workers: int) -> Iterator[Results]:
    """Results of tasks; one worker is this process. Closing a result's iterator leaves the later tasks undone."""
    if workers == 1:
        yield lambda tasks: (work(task) for task in tasks)
        return
    # A fresh interpreter: a fork would inherit the threads and locks of whatever this process has imported.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield lambda tasks: in_order(pool, work, tasks, ahead=AHEAD * workers)
