"""Features of several artifacts as one store. The arrays are linked, not copied; only the list of documents is new."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specflow.features.contract import CONTRACT_FILE, FeatureContract
from specflow.features.location import Directory, kept_elsewhere
from specflow.features.reader import DOCUMENTS, STORE, shard_name
from specflow.features.shard import CHECKSUM, commit_shard, read_marker, verify_shard
from specflow.features.store import FeatureWriter

Describe = Callable[[int], Mapping[str, Any]]
"""From a document's row in its own tokens to what is said of it in the joined store: index, split, id."""


class CannotJoin(ValueError):
    """The message says which features do not go together, and why."""


@dataclass(frozen=True, slots=True)
class Part:
    """Features of one slice. ``name`` is for messages."""

    name: str
    path: Path
    describe: Describe


def join_features(parts: Sequence[Part], output: Path, *, checksums: bool = True) -> int:
    """Write the store of all parts to ``output``, part after part; returns its number of shards.

    Of each shard the sizes, and with ``checksums`` all bytes, are compared with its marker first.

    Raises :class:`CannotJoin` where contracts differ or shards are not on disk, and ``DamagedShard``.
    """
    contract = _common_contract(parts)
    number = 0
    for part in parts:
        for shard in range(_shards(part)):
            source = part.path / STORE / shard_name(shard)
            verify_shard(source, checksums=checksums)
            _link_shard(source, output / STORE / shard_name(number), part.describe)
            number += 1
    FeatureWriter(output, contract).finish(number)
    return number


def _common_contract(parts: Sequence[Part]) -> FeatureContract:
    remote = [part.name for part in parts if kept_elsewhere(part.path)]
    if remote:
        raise CannotJoin(
            f"expected features on disk, found {', '.join(remote)} in object storage: leave out capture.store_url"
        )
    contracts = [FeatureContract.read(part.path / CONTRACT_FILE) for part in parts]
    first = contracts[0].to_dict()
    for part, contract in zip(parts, contracts, strict=True):
        other = contract.to_dict()
        names = [name for name in first if first[name] != other[name]]
        if names:
            listed = "; ".join(f"{name}: {first[name]!r} and {other[name]!r}" for name in names)
            raise CannotJoin(f"{parts[0].name} and {part.name} have different feature contracts: {listed}")
    return contracts[0]


def _shards(part: Part) -> int:
    attributes = json.loads((part.path / STORE / "zarr.json").read_text(encoding="utf-8"))["attributes"]
    return int(attributes["shards"])


def _link_shard(source: Path, place: Path, describe: Describe) -> None:
    marker = read_marker(Directory(source))

    def fill(target: Path) -> dict[str, str]:
        for name in marker["files"]:
            to = target / name
            to.parent.mkdir(parents=True, exist_ok=True)
            if name != DOCUMENTS:
                _link(source / name, to)
        rows = json.loads((source / DOCUMENTS).read_bytes())
        (target / DOCUMENTS).write_text(json.dumps([{**row, **describe(row["index"])} for row in rows], indent=0))
        return {name: entry[CHECKSUM] for name, entry in marker["files"].items() if name != DOCUMENTS}

    commit_shard(place, fill)


def _link(source: Path, to: Path) -> None:
    """Artifacts never change, so two may share a file; where the file system cannot, it is copied."""
    try:
        os.link(source, to)
    except OSError:
        shutil.copyfile(source, to)
