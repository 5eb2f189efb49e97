"""What several tests of decoding stand on."""

from __future__ import annotations

import json

import pytest
import torch

from specflow.decoding import chooser, tree_verification, verification
from specflow.targets.target import Target
from specflow.targets.tiny import make_tiny_target
from tests.decoding.table_target import memoised_distribution


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """Its answers are of unequal length."""
    path = make_tiny_target(tmp_path_factory.mktemp("tiny"), 0)
    config = path / "generation_config.json"
    values = json.loads(config.read_text())
    # A second end token that some answers contain, so that some stop and some reach the limit.
    config.write_text(json.dumps({**values, "eos_token_id": [values["eos_token_id"], 222]}))
    return Target.load(path, threads=1)


@pytest.fixture
def remembered_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enumeration asks for the same few distributions thousands of times: each is computed once."""
    torch.set_num_threads(1)
    remembered = memoised_distribution()
    for module in (chooser, verification, tree_verification):
        monkeypatch.setattr(module, "distribution", remembered)
