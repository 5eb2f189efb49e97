"""Random access to documents with features: mapped from disk, or fetched by range from object storage."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import zarr
from torch import Tensor

from specflow.features.contract import CONTRACT_FILE, FeatureContract
from specflow.features.document import Document
from specflow.features.location import ELSEWHERE, Bucket, Directory, Place, StorageError, kept_elsewhere
from specflow.features.quantise import dequantise
from specflow.features.shard import DamagedShard, verify_shard

STORE = "store"
DOCUMENTS = "documents.json"
CACHE_BYTES = 256 << 20
"""Of fetched documents, kept in memory by a reader of object storage."""
REQUESTS = 16
"""To object storage, at a time."""

Array: TypeAlias = "np.ndarray[Any, Any]"


def shard_name(number: int) -> str:
    return f"shard-{number:05d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    shard: int
    tokens: slice
    rows: slice
    split: str
    kind: str
    id: str
    greedy: bool


class FeatureReader:
    """Reads a features artifact. Documents are numbered 0..len-1 as in the tokens artifact's order.

    Every shard is verified against its commit marker when the reader is opened (sizes always, and ``checksums``
    unless switched off). Raises :class:`DamagedShard` naming shard and file, and ``StorageError`` where object storage
    cannot be reached. bfloat16 tensors from disk are views of mapped files: writing to them changes nothing there.
    """

    def __init__(self, path: Path, *, checksums: bool = True, cache_bytes: int = CACHE_BYTES) -> None:
        self.path = path
        self.contract = FeatureContract.read(path / CONTRACT_FILE)
        bucket = kept_elsewhere(path)
        root: Place = bucket or Directory(path / STORE)
        attributes = _attributes(root)
        if attributes["contract_hash"] != self.contract.hash:
            raise DamagedShard(f"{path}: {CONTRACT_FILE} is not the contract the store was written under")
        listed = listed_shards(path) if bucket else {}
        if bucket:
            require_listed(path, listed, int(attributes["shards"]))
        self._cache = _Cache(cache_bytes)
        self._pool = ThreadPoolExecutor(max_workers=REQUESTS) if bucket else None
        self._arrays: list[dict[str, Any]] = []
        entries: dict[int, _Entry] = {}

        def opened(number: int) -> dict[str, Any]:
            place = root.child(shard_name(number))
            verify_shard(place, checksums=checksums, marker=listed.get(shard_name(number)))
            return _open(place, self.contract)

        for number, arrays in enumerate((self._pool.map if self._pool else map)(opened, range(attributes["shards"]))):
            self._arrays.append(arrays)
            entries.update(_entries(root.child(shard_name(number)), number, arrays))
        self.stored_bytes = sum(root.sizes().values())
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
        tokens = self._entries[position].tokens
        return int(tokens.stop - tokens.start)

    def document(self, position: int) -> Document:
        """The document at ``position`` of 0..len-1; ``Document.index`` is its row in the tokens artifact."""
        entry = self._entries[position]
        arrays = self._arrays[entry.shard]
        rows = self._rows(position)
        return Document(
            index=self._indices[position],
            split=entry.split,
            kind=entry.kind,
            id=entry.id,
            greedy=entry.greedy,
            token_ids_T=torch.from_numpy(arrays["token_ids"][entry.tokens].astype(np.int64)),
            supervised_T=torch.from_numpy(arrays["supervised"][entry.tokens]),
            features_TKH=self._hidden("features", rows),
            last_hidden_TH=self._hidden("last_hidden", rows),
        )

    def _hidden(self, name: str, rows: Mapping[str, Array]) -> Tensor:
        codes = torch.from_numpy(rows[name])
        if self.contract.dtype == "bfloat16":
            return codes.view(torch.bfloat16)
        scales = torch.from_numpy(rows[f"{name}_scale"]).view(torch.bfloat16)
        return dequantise(codes, scales, self.contract.dtype)

    def _rows(self, position: int) -> Mapping[str, Array]:
        """The document's part of every array of rows."""
        entry = self._entries[position]
        arrays = {name: a for name, a in self._arrays[entry.shard].items() if name not in _PER_TOKEN}
        if self._pool is None:
            return {name: array[entry.rows] for name, array in arrays.items()}
        found = self._cache.get(position)
        if found is None:
            parts = self._pool.map(lambda array: array[entry.rows], arrays.values())
            found = self._cache.add(position, dict(zip(arrays, parts, strict=True)))
        return found


class _Cache:
    """The documents read last, up to some bytes. Arrays are copied out: a reader may write to its tensors."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes = limit, 0
        self._kept: OrderedDict[int, Mapping[str, Array]] = OrderedDict()

    def get(self, position: int) -> Mapping[str, Array] | None:
        if position not in self._kept:
            return None
        self._kept.move_to_end(position)
        return {name: array.copy() for name, array in self._kept[position].items()}

    def add(self, position: int, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        size = _bytes(arrays)
        if size <= self._limit:
            self._kept[position] = {name: array.copy() for name, array in arrays.items()}
            self._bytes += size
            while self._bytes > self._limit:
                self._bytes -= _bytes(self._kept.popitem(last=False)[1])
        return arrays


def _bytes(arrays: Mapping[str, Array]) -> int:
    return sum(array.nbytes for array in arrays.values())


class _Remote:
    """An array in object storage; slices of rows are fetched."""

    def __init__(self, place: Bucket, name: str, *, shape: tuple[int, ...], dtype: Any) -> None:
        self._place, self._name, self._shape = place, name, shape
        self._dtype = np.dtype(dtype)
        self._row = int(np.prod(shape[1:])) * self._dtype.itemsize

    def __getitem__(self, rows: slice) -> Array:
        begin, end = rows.start * self._row, rows.stop * self._row
        shape = (rows.stop - rows.start, *self._shape[1:])
        if begin == end:
            return np.empty(shape, dtype=self._dtype)
        try:
            data = self._place.read_range(self._name, begin, end)
        except FileNotFoundError as error:
            raise DamagedShard(f"{self._place}: file {self._name!r} is missing; capture the shard again") from error
        except StorageError:
            # A range that begins after the end is an error of the server, and damage.
            if self._place.sizes().get(self._name, end) >= end:
                raise
            data = bytearray()
        if len(data) != end - begin:
            raise DamagedShard(f"{self._place}: file {self._name!r} ends before byte {end}; capture the shard again")
        return np.frombuffer(data, dtype=self._dtype).reshape(shape)


_PER_TOKEN = ("offsets", "row_offsets", "token_ids", "supervised")


def _attributes(root: Place) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(root.read("zarr.json"))["attributes"]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamagedShard(f"{root}: the store was never finished; run capture again") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedShard(f"{root}/zarr.json: expected the store's attributes, found {error!r}") from error
    return found


def listed_shards(path: Path) -> dict[str, str]:
    """Checksum of each shard's marker, by the shard's name, as the artifact lists them; none if it was not finished."""
    entries = json.loads((path / ELSEWHERE).read_text(encoding="utf-8")).get("shards", [])
    return {entry["name"]: entry["marker"] for entry in entries}


def require_listed(path: Path, listed: Collection[str], shards: int) -> None:
    """Raise :class:`DamagedShard` unless the artifact lists the shards that the store says it has."""
    if set(listed) != {shard_name(n) for n in range(shards)}:
        raise DamagedShard(f"{path / ELSEWHERE} lists {len(listed)} shards, the store has {shards}; run capture again")


def _entries(place: Place, shard: int, arrays: Mapping[str, Any]) -> dict[int, _Entry]:
    tokens = arrays["offsets"]
    rows = arrays.get("row_offsets", tokens)
    return {
        row["index"]: _Entry(
            shard=shard,
            tokens=slice(int(tokens[i]), int(tokens[i + 1])),
            rows=slice(int(rows[i]), int(rows[i + 1])),
            split=row["split"],
            kind=row["kind"],
            id=row["id"],
            greedy=row["greedy"],
        )
        for i, row in enumerate(json.loads(place.read(DOCUMENTS)))
    }


def _open(place: Place, contract: FeatureContract) -> dict[str, Any]:
    if isinstance(place, Directory):
        group = zarr.open_group(store=place.path, mode="r", zarr_format=3)
    else:
        assert isinstance(place, Bucket)
        store = zarr.storage.ObjectStore(place.store, read_only=True)
        group = zarr.open_group(store=store, path=place.path(""), mode="r", zarr_format=3)
    try:
        return {name: _rows_of(place, name, group[name]) for name in _names(contract)}
    except KeyError as error:
        raise DamagedShard(
            f"{place}: no array {error}, which the contract asks for; capture the shard again"
        ) from error


def _names(contract: FeatureContract) -> list[str]:
    scales = [] if contract.dtype == "bfloat16" else ["features_scale", "last_hidden_scale"]
    offsets = ["row_offsets"] if contract.rows == "usable" else []
    return ["offsets", "token_ids", "supervised", *offsets, "features", "last_hidden", *scales]


def _rows_of(place: Place, name: str, array: Any) -> Any:
    """The array's only chunk, mapped or fetched in parts: uncompressed and whole, its file is the array in C order."""
    plain = [type(codec).__name__ for codec in array.metadata.codecs] == ["BytesCodec"]
    if array.size == 0 and plain:
        return np.empty(array.shape, dtype=array.dtype)
    if not plain or array.chunks != array.shape:
        raise DamagedShard(f"{place}: array {name!r} is not one uncompressed chunk; capture the shard again")
    chunk = f"{name}/c/" + "/".join("0" for _ in array.shape)
    dtype = array.dtype.newbyteorder("<")
    if isinstance(place, Directory):
        # Copy-on-write mapping: torch wants writable memory, and the file must stay as committed.
        return np.memmap(place.path / chunk, dtype=dtype, mode="c", shape=array.shape)
    assert isinstance(place, Bucket)
    remote = _Remote(place, chunk, shape=array.shape, dtype=dtype)
    return remote[slice(0, array.shape[0])] if name in _PER_TOKEN else remote
