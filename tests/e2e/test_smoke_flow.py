"""The smoke configuration through the command line and Prefect: killed, damaged, cached, and what it leaves behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import ROOT, command, environment, processes_of, specflow

STAGES = ("target", "regenerate", "tokenize", "capture", "train", "export", "verify", "bench", "report")
LIMIT = 900

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT)]


def _words(store: Path) -> tuple[str | Path, ...]:
    return ("run", "full-pipeline", "--config", "configs/smoke.yaml", "--store", store)


def _run(store: Path) -> Any:
    return specflow(*_words(store), limit=LIMIT)


def _made(store: Path) -> dict[str, float]:
    """When each committed artifact was committed, by kind."""
    return {p.parent.parent.name: p.stat().st_mtime for p in store.glob("*/*/artifact.json")}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("smoke") / "artifacts"


def test_a_killed_run_is_completed_by_the_same_command_and_nothing_finished_is_made_again(store: Path) -> None:
    process = subprocess.Popen(
        command(*_words(store)), cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + LIMIT
    while len(_made(store)) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(random.Random(os.getpid()).uniform(0.0, 6.0))  # somewhere in a later stage
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = _made(store)
    assert len(before) >= 2
    result = _run(store)
    assert {node["id"].split(":")[0] for node in result["nodes"]} == set(STAGES)
    after = _made(store)
    assert len(after) == len(STAGES)
    assert {kind: after[kind] for kind in before} == before
    assert processes_of(store) == []


def test_the_second_run_is_all_cached_and_a_flipped_byte_is_found_and_made_again(store: Path) -> None:
    again = _run(store)
    assert {node["status"] for node in again["nodes"]} == {"cached"}
    before = _made(store)
    victim = next(store.glob("tokens/*/tokens.jsonl"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    result = _run(store)
    states = {node["id"]: node["status"] for node in result["nodes"]}
    assert states["target"] == states["regenerate"] == "cached"
    assert states["tokenize"] != "cached"
    assert next(store.glob("tokens/*/tokens.jsonl")).read_bytes() != bytes(data)
    assert _made(store)["target"] == before["target"]


def test_the_report_of_the_smoke_run_stands_alone_and_its_outputs_were_equal(store: Path) -> None:
    page = next(store.glob("report/*/report.html")).read_text(encoding="utf-8")
    assert "<html" in page
    assert 'src="http' not in page
    verified = json.loads(next(store.glob("verification/*/verification.json")).read_text(encoding="utf-8"))
    assert verified["passed"] is True
    assert all(check["passed"] for check in verified["checks"])
