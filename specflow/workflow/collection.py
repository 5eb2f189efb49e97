"""Garbage collection: what no flow reaches is removed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from filelock import Timeout

from specflow.workflow.store import ArtifactStore

LEFTOVER_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Something removed, or to be removed. ``what``: artifact, unfinished work, damaged artifact."""

    what: str
    name: str
    bytes: int


def with_lineage(store: ArtifactStore, keys: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """``keys`` and everything in the store that they were made from."""
    found: set[tuple[str, str]] = set()
    waiting = list(keys)
    while waiting:
        pair = waiting.pop()
        if pair in found:
            continue
        found.add(pair)
        record = store.record(*pair)
        if record:
            waiting += [(kind, key) for kind, keys_ in record.inputs.items() for key in keys_]
    return found


def collect_garbage(
    store: ArtifactStore,
    reachable: Iterable[tuple[str, str]],
    *,
    dry_run: bool,
    leftover_seconds: float = LEFTOVER_SECONDS,
) -> list[Removed]:
    """Remove artifacts outside ``reachable`` and its lineage, old unfinished work, and damaged artifacts.

    Work that another process holds the lock of is never touched.
    """
    keep = with_lineage(store, reachable)
    removed = []
    for kind, key in store.pairs():
        if (kind, key) not in keep:
            removed.append(Removed(what="artifact", name=f"{kind}/{key}", bytes=tree_bytes(store.path(kind, key))))
            if not dry_run:
                store.remove(kind, key)
    for path in _children(store.damaged):
        removed.append(Removed(what="damaged artifact", name=path.name, bytes=tree_bytes(path)))
        if not dry_run:
            shutil.rmtree(path, ignore_errors=True)
    removed += _leftovers(store, dry_run=dry_run, leftover_seconds=leftover_seconds)
    return removed


def _leftovers(store: ArtifactStore, *, dry_run: bool, leftover_seconds: float) -> list[Removed]:
    removed = []
    for path in _children(store.work):
        if time.time() - _newest(path) < leftover_seconds:
            continue
        kind, _, key = path.name.rpartition("-")
        try:
            with store.lock(kind, key, timeout=0):
                removed.append(Removed(what="unfinished work", name=path.name, bytes=tree_bytes(path)))
                if not dry_run:
                    shutil.rmtree(path, ignore_errors=True)
        except Timeout:
            continue
    return removed


def tree_bytes(path: Path) -> int:
    """Bytes of all files below a directory."""
    return sum(p.lstat().st_size for p in path.rglob("*") if p.is_file() or p.is_symlink())


def _newest(path: Path) -> float:
    return max(p.lstat().st_mtime for p in (path, *path.rglob("*")))


def _children(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else []
