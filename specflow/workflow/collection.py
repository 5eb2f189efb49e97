"""Garbage collection: what no flow reaches is removed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from filelock import Timeout

from specflow.features.location import kept_elsewhere
from specflow.workflow.promotion import DrafterRegistry
from specflow.workflow.store import ArtifactStore

LEFTOVER_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Something removed, or to be removed. ``what``: artifact, unfinished work, damaged artifact, remote data."""

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

    What the registry of drafters names stays too, without what it was made from: a drafter can be served, promoted
    and started from without its data.

    What they keep in object storage goes first, unless something that stays has its data at the same place. Work that
    another process holds the lock of is never touched. Raises ``StorageError`` where a place cannot be reached; the
    pointer to it then stays.
    """
    keep = with_lineage(store, reachable) | DrafterRegistry(store).named()
    remote = _Remote((store.path(*pair) for pair in store.pairs() if pair in keep), dry_run=dry_run)
    # First, so that what then is left of the work has an owner, whose remote data a damaged artifact may share.
    leftovers = _leftovers(store, remote, leftover_seconds=leftover_seconds)
    gone = {r.name for r in leftovers}
    remote.keep(path / "scratch" for path in _children(store.work) if path.name not in gone)
    removed = []
    for kind, key in store.pairs():
        if (kind, key) not in keep:
            path = store.path(kind, key)
            removed += remote.removed(path)
            removed.append(Removed(what="artifact", name=f"{kind}/{key}", bytes=tree_bytes(path)))
            if not dry_run:
                store.remove(kind, key)
    for path in _children(store.damaged):
        removed += remote.removed(path)
        removed.append(Removed(what="damaged artifact", name=path.name, bytes=tree_bytes(path)))
        if not dry_run:
            shutil.rmtree(path, ignore_errors=True)
    return removed + leftovers


class _Remote:
    """Data in object storage that nothing of what stays uses."""

    def __init__(self, staying: Iterable[Path], *, dry_run: bool) -> None:
        self._used: set[str] = set()
        self.dry_run = dry_run
        self.keep(staying)

    def keep(self, directories: Iterable[Path]) -> None:
        self._used |= {str(place) for path in directories if (place := kept_elsewhere(path))}

    def removed(self, directory: Path) -> list[Removed]:
        """What ``directory`` keeps elsewhere, removed unless this is a dry run."""
        place = kept_elsewhere(directory)
        if place is None or str(place) in self._used:
            return []
        self._used.add(str(place))
        sizes = place.sizes()
        if not self.dry_run:
            place.delete(sorted(sizes))
        return [Removed(what="remote data", name=str(place), bytes=sum(sizes.values()))] if sizes else []


def _leftovers(store: ArtifactStore, remote: _Remote, *, leftover_seconds: float) -> list[Removed]:
    removed = []
    for path in _children(store.work):
        if time.time() - _newest(path) < leftover_seconds:
            continue
        kind, _, key = path.name.rpartition("-")
        try:
            with store.lock(kind, key, timeout=0):
                removed += remote.removed(path / "scratch")
                removed.append(Removed(what="unfinished work", name=path.name, bytes=tree_bytes(path)))
                if not remote.dry_run:
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
