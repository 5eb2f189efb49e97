"""Joined features are those of the slices, in their place in the pool; what cannot be joined is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specflow.features.contract import FINGERPRINT_FIELDS, FeatureContract
from specflow.features.document import Document
from specflow.features.joining import CannotJoin, Part, join_features
from specflow.features.location import Bucket, keep_elsewhere
from specflow.features.reader import FeatureReader
from specflow.features.shard import DamagedShard
from specflow.features.store import FeatureWriter

HIDDEN = 4


def contract(*, layer_ids: tuple[int, ...] = (0, 1), rows: str = "all") -> FeatureContract:
    hashes = dict.fromkeys(FINGERPRINT_FIELDS, "x")
    return FeatureContract.for_target(hashes, layer_ids=layer_ids, hidden_size=HIDDEN, precision="fp32", rows=rows)


def document(index: int, tokens: int) -> Document:
    torch.manual_seed(index)
    return Document(
        index=index,
        split="train",
        kind="a",
        id=f"d{index}",
        greedy=True,
        token_ids_T=torch.arange(tokens),
        supervised_T=torch.arange(tokens) > 1,
        features_TKH=torch.randn(tokens, 2, HIDDEN).bfloat16(),
        last_hidden_TH=torch.randn(tokens, HIDDEN).bfloat16(),
    )


def part(root: Path, indices: list[int], *, start: int, rows: str = "all", **changes: object) -> Part:
    made = contract(rows=rows, **changes)  # type: ignore[arg-type]
    if not changes:
        writer = FeatureWriter(root, made)
        for shard, index in enumerate(indices):
            writer.write(shard, [document(index, 4 + index)])
        writer.finish(len(indices))
    else:
        root.mkdir()
        FeatureWriter(root, made).finish(0)
    return Part(root.name, root, lambda i: {"index": start + i, "split": "heldout" if i else "train", "id": f"j{i}"})


@pytest.mark.parametrize("rows", ["all", "usable"])
def test_documents_take_their_place_in_the_pool(tmp_path: Path, rows: str) -> None:
    # Document 1 of the first slice was set aside: its place stays empty.
    parts = [part(tmp_path / "a", [0, 2], start=0, rows=rows), part(tmp_path / "b", [0], start=3, rows=rows)]
    assert join_features(parts, tmp_path / "out") == 3
    reader = FeatureReader(tmp_path / "out")
    found = [reader.document(i) for i in range(len(reader))]
    assert [(d.index, d.split, d.id) for d in found] == [(0, "train", "j0"), (2, "heldout", "j2"), (3, "train", "j0")]
    for joined, index in zip(found, (0, 2, 0), strict=True):
        own = document(index, 4 + index)
        kept = joined.features_TKH.shape[0]
        assert torch.equal(joined.features_TKH, own.features_TKH[:kept])
        assert torch.equal(joined.token_ids_T, own.token_ids_T)
    # The slices are as they were.
    assert FeatureReader(tmp_path / "a").document(1).id == "d2"


def test_other_contracts_are_refused(tmp_path: Path) -> None:
    parts = [part(tmp_path / "a", [0], start=0), part(tmp_path / "b", [], start=1, layer_ids=(0, 2))]
    with pytest.raises(CannotJoin, match=r"a and b have different feature contracts: layer_ids: \[0, 1\] and \[0, 2\]"):
        join_features(parts, tmp_path / "out")


def test_features_in_object_storage_are_refused(tmp_path: Path) -> None:
    parts = [part(tmp_path / "a", [0], start=0)]
    keep_elsewhere(tmp_path / "a", Bucket("file:///nowhere"))
    with pytest.raises(CannotJoin, match=r"found a in object storage: leave out capture\.store_url"):
        join_features(parts, tmp_path / "out")


def test_a_damaged_slice_is_not_joined(tmp_path: Path) -> None:
    parts = [part(tmp_path / "a", [0], start=0)]
    array = tmp_path / "a" / "store" / "shard-00000" / "last_hidden" / "c" / "0" / "0"
    data = array.read_bytes()
    array.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DamagedShard, match="has another checksum"):
        join_features(parts, tmp_path / "out")
    assert join_features(parts, tmp_path / "unread", checksums=False) == 1
    (tmp_path / "a" / "store" / "shard-00000" / "COMMIT.json").unlink()
    with pytest.raises(DamagedShard, match=r"no COMMIT.json"):
        join_features(parts, tmp_path / "third", checksums=False)
