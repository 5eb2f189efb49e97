"""Committed shards: files with a marker that holds the checksum of every one of them.

A shard is written in a temporary directory. On disk that is beside its place, synced, sealed by the marker and
renamed; object storage has no rename, so there the files are written first and the marker last. Either way a shard
with a marker is whole, and what was damaged later is found by it.

Checksums are XXH3 of 128 bits: many times faster than writing, and made to find damage, not forgery.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import xxhash

from specflow.features.location import Bucket, Directory, Place

MARKER = "COMMIT.json"
CHECKSUM = "xxh3_128"
SYNCS = 8
"""Files that are brought to disk at a time."""

Fill = Callable[[Path], Mapping[str, str]]
"""Writes the files of a shard into a directory; returns the checksums that it already knows, by name."""


class DamagedShard(Exception):
    """A shard that must not be read; the message names the shard, the file and what is wrong."""


def checksum(pieces: Iterable[Any]) -> str:
    """Of the buffers in turn."""
    digest = xxhash.xxh3_128()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def commit_shard(place: Path, fill: Fill, *, to: Bucket | None = None, sync: bool = True) -> int:
    """Let ``fill`` write into a temporary directory, seal it, move it to ``place`` or, if given, ``to``; returns bytes.

    One writer per shard. Whatever was there, or left by a killed writer, is replaced. Without ``sync`` a crash of the
    machine may damage the shard, which its marker would show.
    """
    partial = place.with_name(place.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    known = fill(partial)
    entries = {name: _entry(partial, name, known) for name in sorted(Directory(partial).sizes())}
    marker = partial / MARKER
    seal = {"checksum": CHECKSUM, "files": entries}
    marker.write_text(json.dumps(seal, indent=1, sort_keys=True), encoding="utf-8")
    if to is None:
        if sync:
            _sync_tree(partial)
        shutil.rmtree(place, ignore_errors=True)
        partial.rename(place)
        if sync:
            _sync(place.parent)
    else:
        remove_shard(to)
        for name in (*entries, MARKER):
            to.put(name, partial / name)
        shutil.rmtree(partial)
    return stored_bytes(seal)


def remove_shard(place: Bucket) -> None:
    """Delete the shard at ``place``, its marker first, so that it is never trusted in part."""
    names = sorted(place.sizes(), key=lambda name: name != MARKER)
    place.delete(names[:1])
    place.delete(names[1:])


def read_marker(place: Place) -> dict[str, Any]:
    """The marker: ``checksum`` and ``files``. Raises :class:`DamagedShard` where there is none that can be read."""
    try:
        found: dict[str, Any] = json.loads(place.read(MARKER))
        if found["checksum"] != CHECKSUM or not all({"size", CHECKSUM} == set(e) for e in found["files"].values()):
            raise ValueError(f"expected sizes and {CHECKSUM} checksums")
        return found
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamagedShard(f"{place}: no {MARKER}, so the shard was never finished; capture it again") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedShard(f"{place}/{MARKER}: unreadable marker ({error}); capture the shard again") from error


def stored_bytes(marker: Mapping[str, Any]) -> int:
    """Bytes of a shard's files, without the marker."""
    return sum(int(entry["size"]) for entry in marker["files"].values())


def verify_shard(place: Path | Place, *, checksums: bool = True, marker: str | None = None) -> None:
    """Raise :class:`DamagedShard` unless ``place`` is exactly what was committed.

    Without ``checksums`` only presence and sizes are compared. ``marker``: checksum that the marker must have, so that
    a whole shard of another capture is not taken for this one.
    """
    place = Directory(place) if isinstance(place, Path) else place
    sizes = place.sizes()
    if not sizes:
        raise DamagedShard(f"{place}: the shard is missing; capture it again")
    files = read_marker(place)["files"]
    present = set(sizes) - {MARKER}
    for name in sorted(set(files) - present):
        raise DamagedShard(f"{place}: file {name!r} is missing; capture the shard again")
    for name in sorted(present - set(files)):
        raise DamagedShard(f"{place}: file {name!r} does not belong to the shard; capture it again")
    for name, entry in sorted(files.items()):
        if sizes[name] != entry["size"]:
            raise DamagedShard(f"{place}: file {name!r} has {sizes[name]} bytes, {entry['size']} were committed")
        if checksums and checksum(place.stream(name)) != entry[CHECKSUM]:
            raise DamagedShard(f"{place}: file {name!r} has another checksum than was committed")
    if marker is not None and checksum([place.read(MARKER)]) != marker:
        raise DamagedShard(f"{place}: {MARKER} is not the one this artifact was made with; capture it again")


def _entry(root: Path, name: str, known: Mapping[str, str]) -> dict[str, int | str]:
    return {
        "size": (root / name).stat().st_size,
        CHECKSUM: known.get(name) or checksum(Directory(root).stream(name)),
    }


def _sync_tree(root: Path) -> None:
    """Everything below ``root`` on disk. Files are synced side by side: a journal then writes them down together, and
    does not wait for the disk once per small file."""
    directories = []
    files = []
    for directory, _, names in os.walk(root):
        directories.append(Path(directory))
        files += [Path(directory, name) for name in names]
    with ThreadPoolExecutor(max_workers=SYNCS) as pool:
        list(pool.map(_sync, files))
        list(pool.map(_sync, directories))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
