"""Committed shards: a directory with a marker that holds the checksum of every file in it.

A shard is written in a temporary directory beside its place, synced, sealed by the marker and
renamed. So a shard that is there is whole, and what was damaged later is found by the marker.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

MARKER = "COMMIT.json"


class DamagedShard(Exception):
    """A shard that must not be read; the message names the shard, the file and what is wrong."""


def commit_shard(place: Path, fill: Callable[[Path], None]) -> int:
    """Let ``fill`` write into a temporary directory, seal it, move it to ``place``; returns bytes.

    One writer per shard. Whatever was at ``place``, or left by a killed writer, is replaced.
    """
    partial = place.with_name(place.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    fill(partial)
    files = {name: _seal(partial / name) for name in _names(partial)}
    marker = partial / MARKER
    marker.write_text(json.dumps({"files": files}, indent=1, sort_keys=True), encoding="utf-8")
    _sync(marker)
    for directory in (partial, *(d for d in partial.rglob("*") if d.is_dir())):
        _sync(directory)
    shutil.rmtree(place, ignore_errors=True)
    partial.rename(place)
    _sync(place.parent)
    return sum(int(entry["size"]) for entry in files.values())


def verify_shard(place: Path, *, checksums: bool = True) -> None:
    """Raise :class:`DamagedShard` unless ``place`` is exactly what was committed.

    Without ``checksums`` only presence and sizes are compared.
    """
    marker = place / MARKER
    if not place.is_dir():
        raise DamagedShard(f"{place}: the shard is missing; capture it again")
    if not marker.exists():
        raise DamagedShard(f"{place}: no {MARKER}, so the shard was never finished; capture it again")
    try:
        files = json.loads(marker.read_text(encoding="utf-8"))["files"]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedShard(f"{marker}: unreadable marker ({error}); capture the shard again") from error
    present = set(_names(place))
    for name in sorted(set(files) - present):
        raise DamagedShard(f"{place}: file {name!r} is missing; capture the shard again")
    for name in sorted(present - set(files)):
        raise DamagedShard(f"{place}: file {name!r} does not belong to the shard; capture it again")
    for name, entry in sorted(files.items()):
        size = (place / name).stat().st_size
        if size != entry["size"]:
            raise DamagedShard(f"{place}: file {name!r} has {size} bytes, {entry['size']} were committed")
        if checksums and _sha256(place / name) != entry["sha256"]:
            raise DamagedShard(f"{place}: file {name!r} has another checksum than was committed")


def _names(root: Path) -> list[str]:
    paths = (p for p in root.rglob("*") if p.is_file() and p.name != MARKER)
    return sorted(p.relative_to(root).as_posix() for p in paths)


def _seal(path: Path) -> dict[str, int | str]:
    _sync(path)
    return {"size": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
