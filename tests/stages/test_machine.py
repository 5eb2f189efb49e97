"""What was measured about the machine is decided once for an artifact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specflow.stages.machine import remembered, resolved, resolved_threads
from specflow.targets import probe


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text(json.dumps({"hidden_size": 8, "intermediate_size": 24}))
    return tmp_path / "target"


def test_a_resumed_run_keeps_the_first_decision(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []

    def first(hidden: int, intermediate: int) -> str:
        sizes.append((hidden, intermediate))
        return "packed"

    monkeypatch.setattr(probe, "choose_threads", lambda: 1)
    monkeypatch.setattr(probe, "choose_precision", first)
    assert resolved(tmp_path, target, precision="auto", threads=None) == ("packed", 1)
    assert sizes == [(8, 24)]
    monkeypatch.setattr(probe, "choose_threads", lambda: 2)
    monkeypatch.setattr(probe, "choose_precision", lambda hidden, intermediate: "bf16")
    assert resolved(tmp_path, target, precision="auto", threads=None) == ("packed", 1)
    assert resolved_threads(tmp_path, None) == 1
    assert json.loads((tmp_path / "machine.json").read_text()) == {"precision": "packed", "threads": 1}
    assert resolved(tmp_path / "target", target, precision="auto", threads=None) == ("bf16", 2)


def test_what_was_asked_for_is_taken_without_a_measurement(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "choose_threads", lambda: pytest.fail("measured"))
    assert resolved(tmp_path, target, precision="bf16", threads=3) == ("bf16", 3)
    assert not (tmp_path / "machine.json").exists()


def test_a_false_value_is_remembered_too(tmp_path: Path) -> None:
    assert remembered(tmp_path, "autocast", lambda: False) is False
    assert remembered(tmp_path, "autocast", lambda: True) is False
