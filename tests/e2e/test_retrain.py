"""Two retrainings through the command line, Prefect and processes: the second makes what its new rows need."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from specflow.workflow.promotion import DrafterRegistry
from specflow.workflow.store import ArtifactStore
from tests.e2e.commands import ROOT
from tests.e2e.commands import specflow as run_specflow

LIMIT = 900

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT)]


specflow = partial(run_specflow, limit=LIMIT)


def test_two_retrainings(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "configs" / "prompts-smoke", tmp_path / "prompts-smoke")
    config = shutil.copy(ROOT / "configs" / "retrain-smoke.yaml", tmp_path)
    source, store = tmp_path / "prompts-smoke" / "new.jsonl", tmp_path / "artifacts"
    lines = source.read_text().splitlines(keepends=True)
    command = ("run", "retrain", "--config", config, "--store", store)
    source.write_text("".join(lines[:6]))
    first = specflow(*command)
    assert {node["status"] for node in first["nodes"]} == {"made"}
    events = DrafterRegistry(ArtifactStore(store)).events()
    assert events[0].event == "candidate"
    assert events[-1].event in ("promoted", "kept")  # chance: the drafter of a random target
    assert events[-1].reason
    drafter = next(node["key"] for node in first["nodes"] if node["stage"] == "train")
    assert events[-1].drafter == drafter
    # Whatever the gate found: from here on there is a drafter to beat.
    if events[-1].event == "kept":
        specflow("promote", drafter[:12], "--config", config, "--store", store, "--reason", "for the test")
    source.write_text("".join(lines))
    second = specflow(*command)
    states = {node["id"]: node["status"] for node in second["nodes"]}
    old = {"target", "regenerate", "tokenize", "capture"}
    old |= {f"{stage}-new:00000" for stage in ("regenerate", "tokenize", "capture")}
    assert {name for name, status in states.items() if status == "cached"} == old
    assert states["capture-new:00001"] == states["incumbent:promoted"] == states["gate"] == "made"
    known = specflow("drafters", "--store", store)["drafters"]
    assert len(known) == 2
    promoted = [entry for entry in known if entry["state"] == "promoted"]
    assert len(promoted) == 1
    assert Path(promoted[0]["path"], "model.safetensors").is_file()
    page = specflow("history", "--store", store)
    assert len(page["runs"]) == 2
    assert Path(page["page"]).stat().st_size > 10**6
    costs = {cost["stage"]: cost for cost in page["runs"][1]["costs"]}
    assert (costs["capture"]["made"], costs["capture"]["reused"]) == (1, 2)
