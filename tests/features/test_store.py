"""Round trips and every kind of damage. Legend: T tokens, K layers, H hidden size."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

from specflow.features.contract import FeatureContract
from specflow.features.location import Directory
from specflow.features.shard import MARKER, checksum, read_marker
from specflow.features.store import DamagedShard, Document, FeatureReader, FeatureWriter

CONTRACT = FeatureContract(
    weights_sha256="w",
    config_sha256="c",
    tokenizer_sha256="t",
    template_sha256="m",
    layer_ids=(0, 2),
    hidden_size=8,
    precision="fp32",
)


def make(index: int, tokens: int, *, split: str = "train") -> Document:
    generator = torch.Generator().manual_seed(index)
    return Document(
        index=index,
        split=split,
        kind="service" if index % 2 else "broad",
        id=f"row-{index}",
        greedy=index in (1, 4),
        token_ids_T=torch.randint(0, 100, (tokens,), generator=generator),
        supervised_T=torch.rand(tokens, generator=generator) < 0.5,
        features_TKH=torch.randn(tokens, 2, 8, generator=generator).bfloat16(),
        last_hidden_TH=torch.randn(tokens, 8, generator=generator).bfloat16(),
    )


def write(root: Path) -> list[Document]:
    documents = [make(i, 3 + i, split="heldout" if i == 3 else "train") for i in range(5)]
    writer = FeatureWriter(root, CONTRACT)
    writer.write(0, [documents[4], documents[0], documents[2]])
    writer.write(1, [documents[1], documents[3]])
    writer.finish(2)
    return documents


def test_round_trip_keeps_every_bit_in_index_order(tmp_path: Path) -> None:
    documents = write(tmp_path)
    reader = FeatureReader(tmp_path)
    assert len(reader) == 5
    assert reader.indices("heldout") == [3]
    assert reader.indices("train", kind="broad") == [0, 2, 4]
    assert reader.indices(greedy=True) == [1, 4]
    assert reader.indices("train", greedy=False) == [0, 2]
    assert reader.contract == CONTRACT
    for position, wanted in enumerate(documents):
        found = reader.document(position)
        assert (found.index, found.split, found.kind, found.id) == (position, wanted.split, wanted.kind, wanted.id)
        assert found.greedy == wanted.greedy
        assert reader.length(position) == 3 + position
        assert found.token_ids_T.dtype == torch.int64
        assert torch.equal(found.token_ids_T, wanted.token_ids_T)
        assert torch.equal(found.supervised_T, wanted.supervised_T)
        assert torch.equal(found.features_TKH.view(torch.uint16), wanted.features_TKH.view(torch.uint16))
        assert torch.equal(found.last_hidden_TH.view(torch.uint16), wanted.last_hidden_TH.view(torch.uint16))


def test_special_bit_patterns_survive(tmp_path: Path) -> None:
    bits = torch.arange(0, 65536, 4096, dtype=torch.int32).to(torch.uint16)  # zeros, subnormals, infinities, NaN
    document = make(0, 1)
    features = bits.reshape(1, 2, 8).view(torch.bfloat16)
    wanted = Document(
        index=0,
        split="train",
        kind="x",
        token_ids_T=document.token_ids_T,
        supervised_T=document.supervised_T,
        features_TKH=features,
        last_hidden_TH=document.last_hidden_TH,
    )
    writer = FeatureWriter(tmp_path, CONTRACT)
    writer.write(0, [wanted])
    writer.finish(1)
    assert torch.equal(FeatureReader(tmp_path).document(0).features_TKH.view(torch.uint16), features.view(torch.uint16))


def test_plain_zarr_reads_the_same(tmp_path: Path) -> None:
    documents = write(tmp_path)
    group = zarr.open_group(store=tmp_path / "store", mode="r", zarr_format=3)
    array = group["shard-00001/features"]
    assert isinstance(array, zarr.Array)
    assert array.attrs["dtype"] == "bfloat16"
    wanted = torch.cat([documents[1].features_TKH, documents[3].features_TKH]).view(torch.uint16).numpy()
    assert np.array_equal(np.asarray(array[...]), wanted)


def test_all_zero_arrays_are_still_written(tmp_path: Path) -> None:
    zero = Document(
        index=0,
        split="train",
        kind="x",
        token_ids_T=torch.zeros(2, dtype=torch.int64),
        supervised_T=torch.zeros(2, dtype=torch.bool),
        features_TKH=torch.zeros(2, 2, 8, dtype=torch.bfloat16),
        last_hidden_TH=torch.zeros(2, 8, dtype=torch.bfloat16),
    )
    writer = FeatureWriter(tmp_path, CONTRACT)
    writer.write(0, [zero])
    writer.finish(1)
    assert (tmp_path / "store/shard-00000/features/c/0/0/0").stat().st_size == 2 * 2 * 8 * 2
    assert FeatureReader(tmp_path).document(0).features_TKH.abs().sum() == 0


def test_a_shard_without_documents_is_written_and_read(tmp_path: Path) -> None:
    writer = FeatureWriter(tmp_path, CONTRACT)
    writer.write(0, [])
    writer.write(1, [make(1, 4)])
    writer.finish(2)
    assert writer.committed(0)
    reader = FeatureReader(tmp_path)
    assert (len(reader), reader.document(0).index) == (1, 1)
    assert torch.equal(reader.document(0).features_TKH, make(1, 4).features_TKH)


def test_writing_to_a_tensor_does_not_touch_the_store(tmp_path: Path) -> None:
    documents = write(tmp_path)
    FeatureReader(tmp_path).document(0).features_TKH.zero_()
    assert torch.equal(FeatureReader(tmp_path).document(0).features_TKH, documents[0].features_TKH)


CHUNK = "store/shard-00001/features/c/0/0/0"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_flipped_byte_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    flip(tmp_path / CHUNK)
    with pytest.raises(DamagedShard, match=r"shard-00001: file 'features/c/0/0/0' has another checksum"):
        FeatureReader(tmp_path)
    assert not FeatureWriter(tmp_path, CONTRACT).committed(1)
    assert FeatureWriter(tmp_path, CONTRACT).committed(0)


def test_truncated_chunk_is_named_even_without_checksums(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / CHUNK
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DamagedShard, match=r"file 'features/c/0/0/0' has 318 bytes, 320 were committed"):
        FeatureReader(tmp_path, checksums=False)


def test_missing_chunk_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / CHUNK).unlink()
    with pytest.raises(DamagedShard, match=r"file 'features/c/0/0/0' is missing"):
        FeatureReader(tmp_path, checksums=False)


def test_foreign_file_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "store/shard-00001/features/c/0/0/1").write_bytes(b"x")
    with pytest.raises(DamagedShard, match=r"'features/c/0/0/1' does not belong"):
        FeatureReader(tmp_path)


def test_torn_shard_is_named_and_rewritten(tmp_path: Path) -> None:
    documents = write(tmp_path)
    shard = tmp_path / "store/shard-00001"
    (shard / "COMMIT.json").unlink()
    with pytest.raises(DamagedShard, match=r"shard-00001: no COMMIT.json"):
        FeatureReader(tmp_path)
    shutil.rmtree(shard)
    with pytest.raises(DamagedShard, match=r"shard-00001: the shard is missing"):
        FeatureReader(tmp_path)
    partial = tmp_path / "store/shard-00001.partial"
    partial.mkdir()
    (partial / "junk").write_bytes(b"left by a killed writer")
    FeatureWriter(tmp_path, CONTRACT).write(1, [documents[1], documents[3]])
    assert len(FeatureReader(tmp_path)) == 5
    assert not partial.exists()


def test_half_a_marker_is_damage(tmp_path: Path) -> None:
    write(tmp_path)
    marker = tmp_path / "store/shard-00000/COMMIT.json"
    marker.write_text(marker.read_text()[:40])
    with pytest.raises(DamagedShard, match="unreadable marker"):
        FeatureReader(tmp_path)


def test_unfinished_store_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "store/zarr.json").unlink()
    with pytest.raises(DamagedShard, match="never finished"):
        FeatureReader(tmp_path)


def test_contract_of_another_store_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    values = {**CONTRACT.to_dict(), "precision": "bf16"}
    (tmp_path / "contract.json").write_text(json.dumps(values))
    with pytest.raises(DamagedShard, match="not the contract"):
        FeatureReader(tmp_path)


def test_wrong_shapes_are_refused_before_writing(tmp_path: Path) -> None:
    bad = make(0, 4)
    bad = Document(
        index=0,
        split="train",
        kind="x",
        id="row-0",
        token_ids_T=bad.token_ids_T,
        supervised_T=bad.supervised_T,
        features_TKH=bad.features_TKH[:, :1],
        last_hidden_TH=bad.last_hidden_TH,
    )
    with pytest.raises(ValueError, match=r"document 0 \(row-0\): expected features of shape \(4, 2, 8\)"):
        FeatureWriter(tmp_path, CONTRACT).write(0, [bad])


def test_every_file_and_directory_is_on_disk_before_the_shard_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    place = tmp_path / "store" / "shard-00000"

    def sync(descriptor: int) -> None:
        synced.append((str(Path(f"/proc/self/fd/{descriptor}").readlink()), place.exists()))

    monkeypatch.setattr(os, "fsync", sync)
    FeatureWriter(tmp_path, CONTRACT).write(0, [make(0, 4)])
    partial = place.with_name("shard-00000.partial")
    wanted = {str(partial / p.relative_to(place)) for p in (place, *place.rglob("*"))}
    assert {path for path, named in synced if not named} == wanted
    assert [path for path, named in synced if named] == [str(place.parent)]
    synced.clear()
    FeatureWriter(tmp_path, CONTRACT, sync=False).write(1, [make(0, 4)])
    assert synced == []


def test_checksums_are_those_of_the_files(tmp_path: Path) -> None:
    """They are taken of what is about to be written."""
    write(tmp_path)
    for shard in sorted((tmp_path / "store").glob("shard-*")):
        files = read_marker(Directory(shard))["files"]
        assert set(files) == {n for n in Directory(shard).sizes() if n != MARKER}
        for name, entry in files.items():
            assert entry["size"] == (shard / name).stat().st_size
            assert entry["xxh3_128"] == checksum([(shard / name).read_bytes()])
