"""Features in Zarr 3: ``contract.json`` and ``store/shard-00000/`` with one group per shard.

A shard holds whole documents, concatenated: ``token_ids`` [T] int32, ``supervised`` [T] bool, ``offsets`` [D+1] int64,
``features`` [R, K, H] and ``last_hidden`` [R, H], and ``documents.json`` with split, kind, id and greedy. R is T, or
fewer where the contract says that only usable rows are kept; then ``row_offsets`` [D+1] tells whose they are. Rows are
uint16 with the bits of bfloat16, or 8-bit codes with ``features_scale`` [R, K] and ``last_hidden_scale`` [R].

An array is one uncompressed chunk: its file is then the plain array, which a reader maps instead of copying, and the
cost per chunk of Zarr is paid once per shard and array. Hidden states hardly compress.

With a bucket the shards are written there, and the artifact holds ``elsewhere.json`` in place of ``store``.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specflow.features.contract import CONTRACT_FILE, FeatureContract
from specflow.features.document import Document
from specflow.features.location import ELSEWHERE, Bucket, Directory, Place, keep_elsewhere, kept_elsewhere
from specflow.features.lock import ShardBusy, only_writer
from specflow.features.quantise import quantise
from specflow.features.reader import DOCUMENTS, STORE, FeatureReader, shard_name
from specflow.features.rows import usable_rows
from specflow.features.shard import (
    MARKER,
    DamagedShard,
    checksum,
    commit_shard,
    read_marker,
    remove_shard,
    stored_bytes,
    verify_shard,
)

__all__ = ["DamagedShard", "Document", "FeatureReader", "FeatureWriter", "ShardBusy", "shard_name"]


class FeatureWriter:
    """Writes shards under ``root``, or where ``elsewhere.json`` there says (``keep_elsewhere`` writes it).

    Different shards may be written by different processes.
    """

    def __init__(self, root: Path, contract: FeatureContract, *, sync: bool = True) -> None:
        self._root = root
        self._contract = contract
        self._bucket: Bucket | None = kept_elsewhere(root)
        self._sync = sync

    def place(self, shard: int) -> Path:
        """Where the shard is on disk, or is prepared if it goes into a bucket."""
        return self._root / STORE / shard_name(shard)

    def shard(self, shard: int) -> Place:
        return self._bucket.child(shard_name(shard)) if self._bucket else Directory(self.place(shard))

    def committed(self, shard: int) -> bool:
        """Whether the shard is there and undamaged."""
        try:
            verify_shard(self.shard(shard))
        except DamagedShard:
            return False
        return True

    def exists(self, shard: int) -> bool:
        """Whether anything is there, damaged or not."""
        return bool(self.shard(shard).sizes())

    def remove(self, shard: int) -> None:
        if self._bucket:
            remove_shard(self._bucket.child(shard_name(shard)))
        shutil.rmtree(self.place(shard), ignore_errors=True)

    def extra(self, shard: int, name: str) -> Any:
        """A JSON file that was committed with the shard."""
        return json.loads(self.shard(shard).read(name))

    def stored_bytes(self, shards: int) -> int:
        """Bytes of the first ``shards`` shards."""
        return sum(stored_bytes(read_marker(self.shard(n))) for n in range(shards))

    def write(self, shard: int, documents: Sequence[Document], *, extra: Mapping[str, Any] | None = None) -> int:
        """Write and commit one shard; returns its size in bytes.

        Raises ``ValueError`` on wrong shapes or values, and ``ShardBusy`` while somebody else writes the same shard.
        Documents come with all of their rows, in bfloat16; which are kept and how is the contract's. ``extra`` holds
        JSON files, by name, that are committed with the shard.
        """
        for document in documents:
            self._check(document)
        to = self._bucket.child(shard_name(shard)) if self._bucket else None
        with only_writer(self.place(shard)):
            return commit_shard(
                self.place(shard), lambda path: self._fill(path, documents, extra or {}), to=to, sync=self._sync
            )

    def finish(self, shards: int, *, metadata: dict[str, Any] | None = None) -> None:
        """State how many shards the store has; readers refuse a store without this."""
        self._contract.write(self._root / CONTRACT_FILE)
        attributes = {"shards": shards, "contract_hash": self._contract.hash, **(metadata or {})}
        text = json.dumps(_group(attributes), indent=1, sort_keys=True)
        if self._bucket:
            self._drop_others(shards)
            self._bucket.put(CONTRACT_FILE, self._root / CONTRACT_FILE)
            self._bucket.put("zarr.json", text.encode())
            keep_elsewhere(self._root, self._bucket, shards=[self._summary(n) for n in range(shards)])
        else:
            root = self._root / STORE
            root.mkdir(parents=True, exist_ok=True)
            partial = root / "zarr.json.partial"
            partial.write_text(text, encoding="utf-8")
            partial.replace(root / "zarr.json")

    def publish(self, output: Path) -> None:
        """The finished store as an artifact's payload: linked, so that the work in progress stays whole."""
        shutil.copy2(self._root / CONTRACT_FILE, output / CONTRACT_FILE)
        if self._bucket:
            shutil.copy2(self._root / ELSEWHERE, output / ELSEWHERE)
        else:
            leave = shutil.ignore_patterns("*.partial")
            shutil.copytree(self._root / STORE, output / STORE, copy_function=os.link, ignore=leave)

    def _drop_others(self, shards: int) -> None:
        """Files of the bucket that are no shard's: an earlier capture under this key may have had more of them."""
        assert self._bucket is not None
        known = {shard_name(n) for n in range(shards)}
        self._bucket.delete([name for name in self._bucket.sizes() if name.partition("/")[0] not in known])

    def _summary(self, shard: int) -> dict[str, Any]:
        marker = self.shard(shard).read(MARKER)
        size = stored_bytes(json.loads(marker))
        return {"name": shard_name(shard), "bytes": size, "marker": checksum([marker])}

    def _check(self, document: Document) -> None:
        tokens = document.token_ids_T.shape[0]
        hidden = self._contract.hidden_size
        expected = {
            "supervised": (document.supervised_T, (tokens,), torch.bool),
            "features": (document.features_TKH, (tokens, len(self._contract.layer_ids), hidden), torch.bfloat16),
            "last_hidden": (document.last_hidden_TH, (tokens, hidden), torch.bfloat16),
        }
        for name, (tensor, shape, dtype) in expected.items():
            if tuple(tensor.shape) != shape or tensor.dtype != dtype:
                raise ValueError(
                    f"document {document.index} ({document.id}): expected {name} of shape {shape} and {dtype}, "
                    f"found {tuple(tensor.shape)} and {tensor.dtype}"
                )

    def _fill(self, path: Path, documents: Sequence[Document], extra: Mapping[str, Any]) -> dict[str, str]:
        arrays = _Arrays(path)
        arrays.put_text("zarr.json", json.dumps(_group({})))
        arrays.put("offsets", [_offsets(d.token_ids_T.shape[0] for d in documents)])
        arrays.put("token_ids", [_joined([d.token_ids_T for d in documents], torch.int32)], dtype=torch.int32)
        arrays.put("supervised", [_joined([d.supervised_T for d in documents], torch.bool)], dtype=torch.bool)
        if self._contract.rows == "usable":
            documents = [_trimmed(d) for d in documents]
            arrays.put("row_offsets", [_offsets(d.features_TKH.shape[0] for d in documents)])
        row = (len(self._contract.layer_ids), self._contract.hidden_size)
        arrays.put_rows("features", [d.features_TKH for d in documents], row, self._contract.dtype)
        arrays.put_rows("last_hidden", [d.last_hidden_TH for d in documents], row[1:], self._contract.dtype)
        rows = [{"index": d.index, "split": d.split, "kind": d.kind, "id": d.id, "greedy": d.greedy} for d in documents]
        for name, value in {DOCUMENTS: rows, **extra}.items():
            arrays.put_text(name, json.dumps(value, indent=0))
        return arrays.checksums


class _Arrays:
    """The files of a shard, with its arrays as the Zarr 3 specification lays them out. The only chunk of each is
    written from the documents' tensors, one after the other: large ones are not joined first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.checksums: dict[str, str] = {}
        """Of every file, by name."""

    def put_text(self, name: str, text: str) -> None:
        data = text.encode()
        (self._path / name).write_bytes(data)
        self.checksums[name] = checksum([data])

    def put_rows(self, name: str, rows: Sequence[torch.Tensor], row: tuple[int, ...], dtype: str) -> None:
        """Rows of shape ``row`` in the contract's dtype, with the scales beside them if they are codes."""
        if dtype == "bfloat16":
            self.put(name, [r.view(torch.uint16) for r in rows], row, dtype=torch.uint16, stored_as=dtype)
            return
        made = [quantise(r, dtype) for r in rows]
        kind = torch.int8 if dtype == "int8" else torch.uint8
        self.put(name, [m.codes for m in made], row, dtype=kind, stored_as=dtype)
        scales = [m.scales.view(torch.uint16) for m in made]
        self.put(f"{name}_scale", scales, row[:-1], dtype=torch.uint16, stored_as="bfloat16")

    def put(
        self,
        name: str,
        pieces: Sequence[torch.Tensor],
        row: tuple[int, ...] = (),
        *,
        dtype: torch.dtype = torch.int64,
        stored_as: str | None = None,
    ) -> None:
        """All rows, each of shape ``row``; a shard may have none, where no document of it was finite."""
        shape = (sum(p.shape[0] for p in pieces), *row)
        attributes = {"dtype": stored_as} if stored_as else {}
        (self._path / name).mkdir()
        self.put_text(f"{name}/zarr.json", json.dumps(_array(shape, str(dtype).removeprefix("torch."), attributes)))
        if 0 in shape:
            return
        chunk = f"{name}/c/{'/'.join('0' for _ in shape)}"
        (self._path / chunk).parent.mkdir(parents=True)
        with (self._path / chunk).open("wb", buffering=0) as file:
            self.checksums[chunk] = checksum(_written(file, pieces))


def _group(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def _array(shape: Sequence[int], dtype: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of an array that is one uncompressed chunk. Zarr's own function takes milliseconds for it, which is
    much beside a small shard."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [max(1, n) for n in shape]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": False if dtype == "bool" else 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": attributes,
    }


def _written(file: Any, pieces: Iterable[torch.Tensor]) -> Iterator[memoryview]:
    """The bytes of each tensor; they are written when the next one is asked for. So they are hashed first, which
    brings them near to the processor for both."""
    for piece in pieces:
        if not piece.numel():
            continue
        buffer = left = piece.contiguous().cpu().numpy().data.cast("B")
        yield buffer
        while left:
            left = left[file.write(left) :]


def _joined(pieces: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Small tensors in one, which is one write."""
    return torch.cat(list(pieces)).to(dtype) if pieces else torch.empty(0, dtype=dtype)


def _offsets(counts: Iterable[int]) -> torch.Tensor:
    return torch.from_numpy(np.cumsum([0, *counts], dtype=np.int64))


def _trimmed(document: Document) -> Document:
    rows = usable_rows(document.supervised_T)
    return replace(document, features_TKH=document.features_TKH[:rows], last_hidden_TH=document.last_hidden_TH[:rows])
