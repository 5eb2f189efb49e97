"""What a fingerprint tells apart, and what it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specflow.config.target import TargetParams
from specflow.stages import target as stage
from specflow.stages.contract import Inputs
from specflow.targets.fingerprint import fingerprint
from specflow.targets.tiny import make_tiny_target
from tests.stages.pipeline_helpers import FakeContext


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    make_tiny_target(path, 2)
    return path


def edit(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**values, **changes}))


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"])
def test_settings_beside_the_tokenizer_count(model: Path, name: str) -> None:
    before = fingerprint(model)
    edit(model / name, eos_token="<|other|>")
    after = fingerprint(model)
    assert [key for key in before if before[key] != after[key]] == ["tokenizer_sha256"]


def test_where_the_tokenizer_came_from_does_not_count(model: Path) -> None:
    before = fingerprint(model)
    edit(model / "tokenizer_config.json", name_or_path="elsewhere")
    assert fingerprint(model) == before


def test_the_commit_of_a_hub_target_is_recorded(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    snapshot = model.rename(tmp_path / "0123abcd")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **kwargs: str(snapshot))
    context = FakeContext(tmp_path / "run")
    metrics = stage.run(Inputs(()), TargetParams(source="owner/name"), context)
    assert json.loads((context.output / "fingerprint.json").read_text())["source_commit"] == "0123abcd"
    assert metrics["source_commit"] == "0123abcd"
