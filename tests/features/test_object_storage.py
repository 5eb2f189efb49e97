"""Shards in object storage, on a server that speaks S3: round trips, commits, and every kind of damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specflow.features.location import ELSEWHERE, Bucket, StorageError, keep_elsewhere, kept_elsewhere
from specflow.features.shard import MARKER, DamagedShard
from specflow.features.store import FeatureReader, FeatureWriter
from tests.features.test_forms import FP8, expected, same
from tests.features.test_store import CONTRACT, make
from tests.object_storage import bucket, s3_server

__all__ = ["bucket", "s3_server"]

CHUNK = "shard-00001/features/c/0/0/0"
DOCUMENTS = [make(i, 3 + i, split="heldout" if i == 3 else "train") for i in range(5)]


def write(root: Path, place: Bucket, contract=CONTRACT) -> Path:  # type: ignore[no-untyped-def]
    """Shards in the bucket, and the artifact that remembers them."""
    scratch, artifact = root / "scratch", root / "artifact"
    for directory in (scratch, artifact):
        directory.mkdir(parents=True)
    keep_elsewhere(scratch, place)
    writer = FeatureWriter(scratch, contract)
    writer.write(0, [DOCUMENTS[4], DOCUMENTS[0], DOCUMENTS[2]], extra={"notes.json": {"a": 1}})
    writer.write(1, [DOCUMENTS[1], DOCUMENTS[3]])
    writer.finish(2)
    writer.publish(artifact)
    assert writer.extra(0, "notes.json") == {"a": 1}
    return artifact


@pytest.fixture
def place(bucket: str, s3_server: str) -> Bucket:
    return Bucket(f"{bucket}/some/prefix", {"endpoint": s3_server, "region": "us-east-1", "anonymous": False})


@pytest.mark.parametrize("contract", [CONTRACT, FP8], ids=lambda c: c.dtype)
def test_round_trip(tmp_path: Path, place: Bucket, contract) -> None:  # type: ignore[no-untyped-def]
    artifact = write(tmp_path, place, contract)
    for cache_bytes in (0, 200, 1 << 20):
        reader = FeatureReader(artifact, cache_bytes=cache_bytes)
        assert (len(reader), reader.indices("heldout")) == (5, [3])
        for position in (4, 0, 0, 3, 1, 2, 4):
            found = reader.document(position)
            assert same(found, expected(DOCUMENTS[position], contract))
            found.features_TKH.zero_()  # touches neither the bucket nor the cache


def test_the_artifact_holds_only_where_the_data_is(tmp_path: Path, place: Bucket) -> None:
    artifact = write(tmp_path, place)
    assert sorted(p.name for p in artifact.iterdir()) == ["contract.json", ELSEWHERE]
    text = (artifact / ELSEWHERE).read_text()
    assert "test-secret" not in text
    listed = json.loads(text)
    assert listed["url"] == str(place)
    sizes = place.sizes()
    assert [s["name"] for s in listed["shards"]] == ["shard-00000", "shard-00001"]
    for shard in listed["shards"]:
        files = [n for n in sizes if n.startswith(shard["name"]) and not n.endswith(MARKER)]
        assert shard["bytes"] == sum(sizes[n] for n in files)
    # Nothing large stays here, and plain Zarr finds the group there.
    assert not list((tmp_path / "scratch").rglob("c/*"))
    assert "zarr.json" in sizes


def test_the_same_code_reads_a_directory(tmp_path: Path) -> None:
    artifact = write(tmp_path, Bucket(f"file://{tmp_path}/data"))
    assert (tmp_path / "data" / CHUNK).exists()
    assert same(FeatureReader(artifact).document(3), DOCUMENTS[3])


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes | None], str]] = {
    "flipped byte": (CHUNK, flip, r"shard-00001: file 'features/c/0/0/0' has another checksum"),
    "truncated": (CHUNK, lambda d: d[:-2], r"shard-00001: file 'features/c/0/0/0' has 318 bytes, 320 were committed"),
    "missing object": (CHUNK, lambda d: None, r"shard-00001: file 'features/c/0/0/0' is missing"),
    "missing marker": (f"shard-00001/{MARKER}", lambda d: None, r"shard-00001: no COMMIT.json"),
    "half a marker": (f"shard-00001/{MARKER}", lambda d: d[:30], r"shard-00001/COMMIT.json: unreadable marker"),
    "another marker": (f"shard-00001/{MARKER}", lambda d: d + b" ", r"COMMIT.json is not the one this artifact was"),
    "foreign object": ("shard-00001/features/c/0/0/1", lambda d: b"x", r"'features/c/0/0/1' does not belong"),
    "unfinished": ("zarr.json", lambda d: None, r"prefix: the store was never finished"),
}


def test_every_damage_is_named_and_repaired(tmp_path: Path, place: Bucket) -> None:
    artifact = write(tmp_path, place)
    writer = FeatureWriter(tmp_path / "scratch", CONTRACT)
    whole = {name: place.read(name) for name in place.sizes()}
    for kind, (name, change, message) in DAMAGE.items():
        changed = change(whole.get(name, b""))
        if changed is None:
            place.delete([name])
        else:
            place.put(name, changed)
        with pytest.raises(DamagedShard, match=message):
            FeatureReader(artifact)
        if kind == "unfinished":
            writer.finish(2)
        else:
            assert writer.committed(0)
            assert writer.committed(1) == (kind == "another marker")
            writer.write(1, [DOCUMENTS[1], DOCUMENTS[3]])
        assert {n: place.read(n) for n in place.sizes()} == whole, kind
    assert same(FeatureReader(artifact).document(3), DOCUMENTS[3])


def test_damage_after_opening_is_named(tmp_path: Path, place: Bucket) -> None:
    reader = FeatureReader(write(tmp_path, place))
    data = place.read(CHUNK)
    for left in (-8, 50):  # in the midst of the document's rows, and before them
        place.put(CHUNK, data[:left])
        with pytest.raises(DamagedShard, match=r"shard-00001: file 'features/c/0/0/0' ends before byte 320"):
            reader.document(3)
    place.delete([CHUNK])
    with pytest.raises(DamagedShard, match=r"shard-00001: file 'features/c/0/0/0' is missing"):
        reader.document(3)
    assert same(reader.document(4), DOCUMENTS[4])


def test_a_killed_writer_leaves_no_shard(tmp_path: Path, place: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, place)
    writer, put = FeatureWriter(tmp_path / "scratch", CONTRACT), Bucket.put

    class Killed(BaseException): ...

    for survives in range(0, 14, 3):
        left = [survives]

        def dying(self: Bucket, name: str, data: bytes | Path, left: list[int] = left) -> None:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            put(self, name, data)

        monkeypatch.setattr(Bucket, "put", dying)
        with pytest.raises(Killed):
            writer.write(1, [DOCUMENTS[1], DOCUMENTS[3]])
        assert not writer.committed(1)
        assert not writer.exists(1) or survives
        assert MARKER not in place.child("shard-00001").sizes()
    monkeypatch.setattr(Bucket, "put", put)
    writer.write(1, [DOCUMENTS[1], DOCUMENTS[3]])
    assert writer.committed(1)


def test_shards_of_an_earlier_capture_are_cleared(tmp_path: Path, place: Bucket) -> None:
    write(tmp_path, place)
    writer = FeatureWriter(tmp_path / "scratch", CONTRACT)
    writer.finish(1)
    assert {name.partition("/")[0] for name in place.sizes()} == {"shard-00000", "zarr.json", "contract.json"}
    writer.remove(0)
    assert not writer.exists(0)


def test_what_cannot_be_reached_is_named(tmp_path: Path, place: Bucket, s3_server: str) -> None:
    elsewhere = Bucket("s3://no-such-bucket/x", {"endpoint": s3_server, "region": "us-east-1"})
    keep_elsewhere(tmp_path, elsewhere)
    with pytest.raises(StorageError, match="s3://no-such-bucket/x"):
        FeatureWriter(tmp_path, CONTRACT).write(0, [DOCUMENTS[0]])
    assert str(kept_elsewhere(tmp_path)) == "s3://no-such-bucket/x"
    assert kept_elsewhere(tmp_path / "nowhere") is None


def test_token_ids_are_read_once_and_kept(tmp_path: Path, place: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = FeatureReader(write(tmp_path, place))
    asked: list[str] = []
    ranges = Bucket.read_range

    def counting(self: Bucket, name: str, start: int, end: int) -> bytearray:
        asked.append(name)
        return ranges(self, name, start, end)

    monkeypatch.setattr(Bucket, "read_range", counting)
    first = reader.document(2)
    assert sorted(asked) == ["features/c/0/0/0", "last_hidden/c/0/0"]
    assert torch.equal(reader.document(2).features_TKH, first.features_TKH)
    assert len(asked) == 2
