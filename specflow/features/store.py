"""Features in Zarr 3: ``contract.json`` and ``store/shard-00000/`` with one group per shard.

A shard holds whole documents, concatenated: ``token_ids`` [T] int32, ``supervised`` [T] bool,
``offsets`` [D+1] int64, ``features`` [T, K, H] and ``last_hidden`` [T, H] as uint16 with the bits
of bfloat16, and ``documents.json`` with split, kind, id and greedy. An array is one uncompressed chunk:
its file is then the plain array, which a reader maps instead of copying, and the cost per chunk
of Zarr is paid once per shard and array.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr

from specflow.features.contract import CONTRACT_FILE, FeatureContract
from specflow.features.document import Document
from specflow.features.lock import ShardBusy, only_writer
from specflow.features.reader import FeatureReader
from specflow.features.shard import DamagedShard, commit_shard, verify_shard

__all__ = ["DamagedShard", "Document", "FeatureReader", "FeatureWriter", "ShardBusy"]

STORE = "store"
DOCUMENTS = "documents.json"


def shard_name(number: int) -> str:
    return f"shard-{number:05d}"


class FeatureWriter:
    """Writes shards under ``root``; different shards may be written by different processes."""

    def __init__(self, root: Path, contract: FeatureContract) -> None:
        self._root = root
        self._contract = contract

    def place(self, shard: int) -> Path:
        return self._root / STORE / shard_name(shard)

    def committed(self, shard: int) -> bool:
        """Whether the shard is there and undamaged."""
        try:
            verify_shard(self.place(shard))
        except DamagedShard:
            return False
        return True

    def write(self, shard: int, documents: Sequence[Document], *, extra: Mapping[str, Any] | None = None) -> int:
        """Write and commit one shard; returns its size in bytes. Raises ``ValueError`` on wrong shapes,
        and ``ShardBusy`` while somebody else writes the same shard.

        ``extra`` holds JSON files, by name, that are committed with it.
        """
        for document in documents:
            self._check(document)
        with only_writer(self.place(shard)):
            return commit_shard(self.place(shard), lambda path: self._fill(path, documents, extra or {}))

    def finish(self, shards: int, *, metadata: dict[str, Any] | None = None) -> None:
        """State how many shards the store has; readers refuse a store without this."""
        self._contract.write(self._root / CONTRACT_FILE)
        root = self._root / STORE
        root.mkdir(parents=True, exist_ok=True)
        attributes = {"shards": shards, "contract_hash": self._contract.hash, **(metadata or {})}
        group = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
        partial = root / "zarr.json.partial"
        partial.write_text(json.dumps(group, indent=1, sort_keys=True), encoding="utf-8")
        partial.replace(root / "zarr.json")

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

    def _fill(self, path: Path, documents: Sequence[Document], extra: Mapping[str, Any]) -> None:
        offsets = np.cumsum([0, *(d.token_ids_T.shape[0] for d in documents)], dtype=np.int64)
        group = zarr.open_group(store=path, mode="w", zarr_format=3)
        bits = {"dtype": "bfloat16"}
        _put(group, "offsets", offsets)
        layers, hidden = len(self._contract.layer_ids), self._contract.hidden_size
        features = [d.features_TKH.view(torch.uint16) for d in documents]
        last = [d.last_hidden_TH.view(torch.uint16) for d in documents]
        _put(group, "token_ids", _joined([d.token_ids_T for d in documents], np.int32))
        _put(group, "supervised", _joined([d.supervised_T for d in documents], np.bool_))
        _put(group, "features", _joined(features, np.uint16, layers, hidden), bits)
        _put(group, "last_hidden", _joined(last, np.uint16, hidden), bits)
        rows = [{"index": d.index, "split": d.split, "kind": d.kind, "id": d.id, "greedy": d.greedy} for d in documents]
        for name, value in {DOCUMENTS: rows, **extra}.items():
            (path / name).write_text(json.dumps(value, indent=0), encoding="utf-8")


def _joined(tensors: Sequence[torch.Tensor], dtype: Any, *row: int) -> np.ndarray[Any, Any]:
    """All rows, each of shape ``row``; a shard may have none, where no document of it was finite."""
    if not tensors:
        return np.empty((0, *row), dtype=dtype)
    return np.concatenate([t.cpu().numpy() for t in tensors]).astype(dtype, copy=False)


def _put(group: zarr.Group, name: str, values: np.ndarray[Any, Any], attributes: dict[str, Any] | None = None) -> None:
    array = group.create_array(
        name,
        shape=values.shape,
        dtype=values.dtype,
        chunks=tuple(max(1, n) for n in values.shape),
        compressors=None,
        filters=None,
        attributes=attributes or {},
        # The default drops chunks that equal the fill value; a missing file must always mean damage.
        config={"write_empty_chunks": True},
    )
    array[...] = values
