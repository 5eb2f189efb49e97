"""The flow `scheduler` and `advise` through the command line, on the smoke configuration with a DSpark drafter."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.commands import specflow as run_specflow

LIMIT = 600
SETTINGS = (
    "drafters.dflash.method=dspark", "drafters.dflash.head_rank=16", "bench.scheduler.mode=lagged",
    "verify.scheduler.mode=causal", "calibrate.precision=fp32", "calibrate.threads=1", "profile.precision=fp32",
    # Few shapes that differ much, often timed: other work beside it does not make the table uncertain.
    "profile.threads=1", "profile.requests=[1, 8]", "profile.rows=[1, 16]", "profile.uneven=false",
    "profile.samples=20", "profile.visits=5",
)  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT)]


specflow = partial(run_specflow, limit=LIMIT)


def test_scheduler_flow_and_advice(tmp_path: Path) -> None:
    store = tmp_path / "artifacts"
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    made = specflow("run", "scheduler", "--config", "configs/smoke.yaml", "--store", str(store), *settings)
    assert {node["status"] for node in made["nodes"]} == {"made"}
    assert {"calibrate", "profile", "verify", "bench"} <= {node["id"].split(":")[0] for node in made["nodes"]}
    result = json.loads(next(store.glob("benchmark/*/result.json")).read_text(encoding="utf-8"))
    scheduler = result["scheduler"]
    assert scheduler["mode"] == "lagged"
    granted = scheduler["granted"]
    assert granted["rounds"] <= granted["rows"]
    assert granted["rows"] + granted["rows_saved"] == granted["rounds"] * 5
    verified = json.loads(next(store.glob("verification/*/verification.json")).read_text(encoding="utf-8"))
    assert verified["passed"] is True
    # Rounds of the calibration, and the cost table; a benchmark with a scheduler is no evidence.
    advice = specflow("advise", "--store", str(store), "--concurrency", "8")
    assert {option["policy"] for option in advice["options"]} == {"plain", "fixed", "causal", "lagged"}
    assert advice["best"]["tokens_per_second"] == max(o["tokens_per_second"] for o in advice["options"])
    assert [found["benchmark"] for found in advice["artifacts"]["drafters"].values()] == [None]
