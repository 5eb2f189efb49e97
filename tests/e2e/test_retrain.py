"""Two retrainings through the command line, Prefect and processes: the second makes what its new rows need."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specflow.workflow.promotion import DrafterRegistry
from specflow.workflow.store import ArtifactStore

ROOT = Path(__file__).parents[2]
LIMIT = 900

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT)]


def _specflow(*words: str | Path) -> Any:
    paths = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "specflow", *map(str, words), "--json"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_two_retrainings(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "configs" / "prompts-smoke", tmp_path / "prompts-smoke")
    config = shutil.copy(ROOT / "configs" / "retrain-smoke.yaml", tmp_path)
    source, store = tmp_path / "prompts-smoke" / "new.jsonl", tmp_path / "artifacts"
    lines = source.read_text().splitlines(keepends=True)
    command = ("run", "retrain", "--config", config, "--store", store)
    source.write_text("".join(lines[:6]))
    first = _specflow(*command)
    assert {node["status"] for node in first["nodes"]} == {"made"}
    events = DrafterRegistry(ArtifactStore(store)).events()
    assert events[0].event == "candidate"
    assert events[-1].event in ("promoted", "kept")  # chance: the drafter of a random target
    assert events[-1].reason
    drafter = next(node["key"] for node in first["nodes"] if node["stage"] == "train")
    assert events[-1].drafter == drafter
    # Whatever the gate found: from here on there is a drafter to beat.
    if events[-1].event == "kept":
        _specflow("promote", drafter[:12], "--config", config, "--store", store, "--reason", "for the test")
    source.write_text("".join(lines))
    second = _specflow(*command)
    states = {node["id"]: node["status"] for node in second["nodes"]}
    old = {"target", "regenerate", "tokenize", "capture"}
    old |= {f"{stage}-new:00000" for stage in ("regenerate", "tokenize", "capture")}
    assert {name for name, status in states.items() if status == "cached"} == old
    assert states["capture-new:00001"] == states["incumbent:promoted"] == states["gate"] == "made"
    known = _specflow("drafters", "--store", store)["drafters"]
    assert len(known) == 2
    promoted = [entry for entry in known if entry["state"] == "promoted"]
    assert len(promoted) == 1
    assert Path(promoted[0]["path"], "model.safetensors").is_file()
    page = _specflow("history", "--store", store)
    assert len(page["runs"]) == 2
    assert Path(page["page"]).stat().st_size > 10**6
    costs = {cost["stage"]: cost for cost in page["runs"][1]["costs"]}
    assert (costs["capture"]["made"], costs["capture"]["reused"]) == (1, 2)
