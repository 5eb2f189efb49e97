"""One writer per shard: a lock that the operating system releases when its holder ends, however it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

LOCKS = "locks"
"""Directory beside the store, so that no lock file ever belongs to a shard."""


class ShardBusy(Exception):
    """Another writer is at work on the same shard; the message names both."""


@contextmanager
def only_writer(place: Path) -> Iterator[None]:
    """Hold the shard at ``place``; raises :class:`ShardBusy` at once if somebody else does."""
    locks = place.parent.parent / LOCKS
    locks.mkdir(parents=True, exist_ok=True)
    holder = locks / f"{place.name}.holder"
    lock = FileLock(locks / f"{place.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        known = f"process {holder.read_text(encoding='utf-8')}" if holder.exists() else "another process"
        raise ShardBusy(
            f"{place}: two writers on one shard, {known} and process {os.getpid()}; one of them must end first"
        ) from error
    with lock:
        holder.write_text(str(os.getpid()), encoding="utf-8")
        yield
