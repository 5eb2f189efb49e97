"""What reading and tokenising share of working in several processes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def usable_cores() -> int:
    """Cores that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def in_order(
    pool: ProcessPoolExecutor, work: Callable[[Item], Result], items: Iterable[Item], *, ahead: int
) -> Iterator[Result]:
    """``work(item)`` of every item in its order, whatever finishes first; at most ``ahead`` are under way.

    Closing the iterator leaves undone what has not begun. An exception in a worker is raised here.
    """
    waiting: deque[Future[Result]] = deque()
    remaining = iter(items)
    try:
        waiting.extend(pool.submit(work, item) for item in islice(remaining, ahead))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(work, item) for item in islice(remaining, 1))
    finally:
        for future in waiting:
            future.cancel()
