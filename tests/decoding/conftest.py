"""The target of tests that need answers of unequal length."""

from __future__ import annotations

import json

import pytest

from specflow.targets.target import Target
from specflow.targets.tiny import make_tiny_target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    path = make_tiny_target(tmp_path_factory.mktemp("tiny"), 0)
    config = path / "generation_config.json"
    values = json.loads(config.read_text())
    # A second end token that some answers contain, so that some stop and some reach the limit.
    config.write_text(json.dumps({**values, "eos_token_id": [values["eos_token_id"], 222]}))
    return Target.load(path, threads=1)
