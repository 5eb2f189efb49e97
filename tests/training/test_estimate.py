"""The memory estimate against the peak that fresh processes measure, and what it does not depend on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specflow.training.estimate import memory_estimate
from tests.drafters.helpers import geometry

ROOT = Path(__file__).parents[2]
FACTOR = 1.4
"""Stated in ``memory_estimate``."""
CASES = {
    "weights": {"anchors": 4, "length": 64, "vocabulary": 1000, "hidden": 768, "intermediate": 3072},
    "vocabulary": {"anchors": 32, "length": 128, "vocabulary": 120000, "hidden": 64, "intermediate": 128},
    "blocks": {"anchors": 512, "block": 8, "length": 600, "vocabulary": 1000, "hidden": 256, "intermediate": 1024},
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", CASES)
def test_estimate_is_within_the_stated_factor_of_the_measured_peak(name: str) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(ROOT / "benchmarks" / "train_memory.py"), "--measure", json.dumps(CASES[name])]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["peak"] / FACTOR <= found["estimate"] <= found["peak"] * FACTOR


def test_anchors_beyond_a_pass_and_vocabulary_beyond_a_chunk_cost_nothing() -> None:
    g = geometry(block_size=8, vocab_size=4096, mask_token_id=0)
    of = [memory_estimate(g, blocks=n, context_rows=1000, softmax_rows=4096).step for n in (256, 512, 4096, 100_000)]
    assert of[0] < of[1] == of[2] == of[3]
    few, many = (memory_estimate(g, blocks=64, context_rows=1000, softmax_rows=n).step for n in (500, 4096))
    assert few == many
