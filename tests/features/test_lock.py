"""Two writers on one shard: the second is refused and named, and a killed one stands in nobody's way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from specflow.features.contract import FeatureContract
from specflow.features.lock import ShardBusy, only_writer
from specflow.features.store import Document, FeatureReader, FeatureWriter

ROOT = Path(__file__).parents[2]
HOLD = """
import sys, time
from pathlib import Path
from specflow.features.lock import only_writer
with only_writer(Path(sys.argv[1])):
    Path(sys.argv[2]).touch()
    time.sleep(600)
"""
CONTRACT = FeatureContract(
    weights_sha256="w",
    config_sha256="c",
    tokenizer_sha256="t",
    template_sha256="m",
    layer_ids=(0,),
    hidden_size=2,
    precision="fp32",
)
DOCUMENT = Document(
    index=0,
    split="train",
    kind="x",
    token_ids_T=torch.tensor([5, 6, 7]),
    supervised_T=torch.tensor([False, True, True]),
    features_TKH=torch.arange(6.0).reshape(3, 1, 2).bfloat16(),
    last_hidden_TH=torch.ones(3, 2).bfloat16(),
)


def test_a_writer_beside_another_process_is_refused_by_name_until_that_one_is_gone(tmp_path: Path) -> None:
    writer, held = FeatureWriter(tmp_path, CONTRACT), tmp_path / "held"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HOLD, str(writer.place(0)), str(held)]
    other = subprocess.Popen(command, env=environment)
    try:
        deadline = time.monotonic() + 60
        while not held.exists() and other.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert held.exists()
        with pytest.raises(
            ShardBusy, match=rf"shard-00000: two writers .* process {other.pid} and process {os.getpid()}"
        ):
            writer.write(0, [DOCUMENT])
        assert not writer.place(0).exists()
        assert not writer.place(0).with_name("shard-00000.partial").exists()
        writer.write(1, [DOCUMENT])
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
    writer.write(0, [DOCUMENT])
    assert writer.committed(0)
    assert writer.committed(1)


def test_two_writers_of_one_process_exclude_each_other_too(tmp_path: Path) -> None:
    place = tmp_path / "store" / "shard-00004"
    with only_writer(place):
        with pytest.raises(ShardBusy), only_writer(place):
            pytest.fail("both hold the shard")
        with only_writer(place.with_name("shard-00005")):
            pass
    with only_writer(place):
        pass


def test_locks_are_outside_the_store(tmp_path: Path) -> None:
    writer = FeatureWriter(tmp_path, CONTRACT)
    writer.write(0, [DOCUMENT])
    writer.finish(1)
    assert sorted(p.name for p in (tmp_path / "store").iterdir()) == ["shard-00000", "zarr.json"]
    assert len(FeatureReader(tmp_path)) == 1
