"""Whole runs through Prefect with fake stages, in one process after another."""

from __future__ import annotations

import io
import json

import psutil
import pytest

from specflow.workflow.console import PlainConsole
from specflow.workflow.flow import Flow
from specflow.workflow.registry import Registry
from specflow.workflow.runner import run
from specflow.workflow.store import ArtifactStore
from tests.workflow.fakes.params import FakeConfig, ScaleParams

pytestmark = pytest.mark.slow


def test_run_makes_everything_then_finds_it_cached_then_repairs_damage(
    flow: Flow, registry: Registry, store: ArtifactStore, capfd: pytest.CaptureFixture[str]
) -> None:
    first_text, second_text = io.StringIO(), io.StringIO()
    first = run(flow, FakeConfig(), store, registry=registry, console=PlainConsole(first_text))
    assert first.exit_code == 0, first_text.getvalue()
    assert [(n.id, n.status) for n in first.nodes] == [
        ("numbers", "made"),
        ("scale:a", "made"),
        ("scale:b", "made"),
        ("total", "made"),
    ]
    assert first.node("total").metrics == {"total": (0 + 1 + 2) * 12}
    assert first.node("scale:a").metrics["item"] == "a"
    assert "\x1b" not in first_text.getvalue()
    damaged = store.list("scaled")[0].path / "sub" / "sum.txt"
    damaged.write_text("999"[: damaged.stat().st_size])
    second = run(flow, FakeConfig(), store, registry=registry, console=PlainConsole(second_text))
    assert second.exit_code == 0
    assert [n.status for n in second.nodes].count("cached") == 3
    assert [n.id for n in second.nodes if n.status == "made"] == ["scale:a"]
    assert "sum.txt sha256 differs" in second_text.getvalue()
    assert len(list(store.damaged.iterdir())) == 1
    assert [n.key for n in first.nodes] == [n.key for n in second.nodes]
    assert json.loads(json.dumps(second.as_json()))["exit_code"] == 0
    states = _states_in_prefect(store)
    print(states)
    assert states[first.name] == {
        "numbers": "Completed",
        "scale:a": "Completed",
        "scale:b": "Completed",
        "total": "Completed",
    }
    assert states[second.name] == {"numbers": "Cached", "scale:a": "Completed", "scale:b": "Cached", "total": "Cached"}
    assert not [p for p in psutil.Process().children(recursive=True) if "specflow.workflow" in " ".join(p.cmdline())]


def test_failed_stage_fails_the_run_and_names_its_log(flow: Flow, registry: Registry, store: ArtifactStore) -> None:
    config = FakeConfig(scales={"a": ScaleParams(fail=True), "b": ScaleParams()})
    text = io.StringIO()
    result = run(flow, config, store, registry=registry, console=PlainConsole(text))
    assert result.exit_code == 1
    assert [(n.id, n.status) for n in result.nodes] == [
        ("numbers", "made"),
        ("scale:a", "failed"),
        ("scale:b", "made"),
        ("total", "not run"),
    ]
    log = result.node("scale:a").log
    assert log is not None
    assert str(log) in text.getvalue()
    assert "the factor was told to fail" in log.read_text()
    assert _states_in_prefect(store)[result.name]["total"] == "NotRun"


def _states_in_prefect(store: ArtifactStore) -> dict[str, dict[str, str]]:
    """Task runs by flow run, from the database the server left."""
    import sqlite3

    with sqlite3.connect(store.root / ".prefect" / "prefect.db") as database:
        rows = database.execute(
            "select f.name, t.name, t.state_name from task_run t join flow_run f on f.id = t.flow_run_id"
        ).fetchall()
    states: dict[str, dict[str, str]] = {}
    for run_name, node, state in rows:
        states.setdefault(run_name, {})[node] = state
    return states
