"""Random access to documents with features, without copying them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr

from specflow.features.contract import CONTRACT_FILE, FeatureContract
from specflow.features.document import Document
from specflow.features.shard import DamagedShard, verify_shard


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    shard: int
    start: int
    end: int
    split: str
    kind: str
    id: str
    greedy: bool


class FeatureReader:
    """Reads a features artifact. Documents are numbered 0..len-1 as in the tokens artifact's order.

    Every shard is verified against its commit marker when the reader is opened (sizes always, and
    ``checksums`` unless switched off). Raises :class:`DamagedShard` naming shard and file. Tensors
    are views of memory-mapped files: writing to them changes nothing on disk.
    """

    def __init__(self, path: Path, *, checksums: bool = True) -> None:
        self.path = path
        self.contract = FeatureContract.read(path / CONTRACT_FILE)
        root = path / "store"
        if not (root / "zarr.json").exists():
            raise DamagedShard(f"{root}: the store was never finished; run capture again")
        attributes = json.loads((root / "zarr.json").read_text(encoding="utf-8"))["attributes"]
        if attributes["contract_hash"] != self.contract.hash:
            raise DamagedShard(f"{path}: {CONTRACT_FILE} is not the contract the store was written under")
        self._arrays: list[dict[str, np.ndarray[Any, Any]]] = []
        entries: dict[int, _Entry] = {}
        for number in range(int(attributes["shards"])):
            place = root / f"shard-{number:05d}"
            verify_shard(place, checksums=checksums)
            self._arrays.append(_open(place))
            entries.update(_entries(place, number, self._arrays[-1]["offsets"]))
        self._entries = [entries[index] for index in sorted(entries)]
        self._indices = sorted(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def indices(self, split: str | None = None, kind: str | None = None, *, greedy: bool | None = None) -> list[int]:
        """Positions of the documents of a split and kind, greedy or not (``None``: any), increasing."""
        return [
            position
            for position, entry in enumerate(self._entries)
            if split in (None, entry.split) and kind in (None, entry.kind) and greedy in (None, entry.greedy)
        ]

    def length(self, position: int) -> int:
        """Tokens of a document, without touching its features."""
        return self._entries[position].end - self._entries[position].start

    def document(self, position: int) -> Document:
        """The document at ``position`` of 0..len-1; ``Document.index`` is its row in the tokens artifact."""
        entry = self._entries[position]
        arrays = self._arrays[entry.shard]
        rows = slice(entry.start, entry.end)
        return Document(
            index=self._indices[position],
            split=entry.split,
            kind=entry.kind,
            id=entry.id,
            greedy=entry.greedy,
            token_ids_T=torch.from_numpy(arrays["token_ids"][rows].astype(np.int64)),
            supervised_T=torch.from_numpy(arrays["supervised"][rows]),
            features_TKH=torch.from_numpy(arrays["features"][rows]).view(torch.bfloat16),
            last_hidden_TH=torch.from_numpy(arrays["last_hidden"][rows]).view(torch.bfloat16),
        )


def _entries(place: Path, shard: int, offsets: np.ndarray[Any, Any]) -> dict[int, _Entry]:
    rows = json.loads((place / "documents.json").read_text(encoding="utf-8"))
    return {
        row["index"]: _Entry(
            shard=shard,
            start=int(offsets[i]),
            end=int(offsets[i + 1]),
            split=row["split"],
            kind=row["kind"],
            id=row["id"],
            greedy=row["greedy"],
        )
        for i, row in enumerate(rows)
    }


def _open(place: Path) -> dict[str, np.ndarray[Any, Any]]:
    group = zarr.open_group(store=place, mode="r", zarr_format=3)
    return {
        name: _mapped(place, name, group[name])
        for name in ("offsets", "token_ids", "supervised", "features", "last_hidden")
    }


def _mapped(place: Path, name: str, array: Any) -> np.ndarray[Any, Any]:
    """The array's only chunk, mapped: uncompressed and whole, its file is the array in C order."""
    plain = [type(codec).__name__ for codec in array.metadata.codecs] == ["BytesCodec"]
    if array.size == 0 and plain:
        return np.empty(array.shape, dtype=array.dtype)
    if not plain or array.chunks != array.shape:
        raise DamagedShard(f"{place}: array {name!r} is not one uncompressed chunk; capture the shard again")
    chunk = place / name / "c" / "/".join("0" for _ in array.shape)
    # Copy-on-write mapping: torch wants writable memory, and the file must stay as committed.
    return np.memmap(chunk, dtype=array.dtype.newbyteorder("<"), mode="c", shape=array.shape)
