"""The memory estimate of a pass against the peak that fresh processes measure, and what it does not depend on."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specflow.drafters.dflash.learner import DFlashLearner
from specflow.drafters.dflash.memory import anchors_per_pass, pass_bytes
from specflow.drafters.dflash.network import DFlashNetwork
from specflow.training.estimate import describe_pass
from tests.drafters.helpers import geometry
from tests.training.helpers import ends
from tests.training.test_sharding import sources

ROOT = Path(__file__).parents[2]
FACTOR = 1.4
"""Stated in ``pass_bytes``."""
CASES = {
    "weights": {"anchors": 4, "length": 64, "vocabulary": 1000, "hidden": 768, "intermediate": 3072},
    "vocabulary": {"anchors": 32, "length": 128, "vocabulary": 120000, "hidden": 64, "intermediate": 128},
    "blocks": {"anchors": 512, "block": 8, "length": 600, "vocabulary": 1000, "hidden": 256, "intermediate": 1024},
    "sequential head": {"anchors": 64, "length": 128, "vocabulary": 30000, "hidden": 128, "head_rank": 64, "rnn": 1},
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
    learner = DFlashLearner(DFlashNetwork(g), ends(), decay=1.0)
    assert learner.anchors_per_pass == anchors_per_pass(g) == 512
    document = sources()[0]
    texts = []
    for count in (256, 512, 4096):
        many = dataclasses.replace(document, anchors=torch.arange(count))
        texts.append(describe_pass(learner, [many], documents_per_pass=None, softmax_rows=500))
    assert texts[0] != texts[1] == texts[2]
    few, more, most = (pass_bytes(g, anchors=512, context_rows=1000, softmax_rows=n) for n in (4096, 9999, 1 << 24))
    assert few == more < most
