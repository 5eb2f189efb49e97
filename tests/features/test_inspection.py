"""All damage is listed, not only the first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specflow.features.inspection import inspect_store
from specflow.features.store import FeatureWriter
from tests.features.test_store import CONTRACT, make


@pytest.fixture
def root(tmp_path: Path) -> Path:
    writer = FeatureWriter(tmp_path, CONTRACT)
    for number in range(4):
        writer.write(number, [make(number, 3)])
    writer.finish(4)
    return tmp_path


def test_a_sound_store(root: Path) -> None:
    found = inspect_store(root)
    assert (found.contract, found.count, found.damage) == (CONTRACT, 4, [])


def test_every_damaged_shard_is_named(root: Path) -> None:
    chunk = root / "store/shard-00000/features/c/0/0/0"
    chunk.write_bytes(bytes([chunk.read_bytes()[0] ^ 1]) + chunk.read_bytes()[1:])
    (root / "store/shard-00002/COMMIT.json").unlink()
    (root / "store/shard-00003/offsets/c/0").unlink()
    (root / "store/shard-00007").mkdir()
    found = inspect_store(root)
    assert sorted(found.shards) == [0, 2, 3]
    assert "another checksum" in found.shards[0]
    assert "COMMIT.json" in found.shards[2]
    assert "'offsets/c/0' is missing" in found.shards[3]
    assert found.problems == [f"{root / 'store/shard-00007'} does not belong to the store"]
    assert sorted(inspect_store(root, checksums=False).shards) == [2, 3]


def test_damage_of_the_whole(root: Path) -> None:
    values = {**CONTRACT.to_dict(), "precision": "bf16"}
    (root / "contract.json").write_text(json.dumps(values))
    (problem,) = inspect_store(root).problems
    assert "not the contract that the store was written under" in problem
    (root / "contract.json").write_text("{")
    (root / "store/zarr.json").unlink()
    found = inspect_store(root)
    assert (len(found.problems), found.contract, found.count) == (2, None, 0)
