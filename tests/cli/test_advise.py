"""``advise`` on a store: which artifacts it takes, what it prints, what it says is missing."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from specflow.costs.sglang_tables import table_as_json
from specflow.workflow.commit import Attempt, Recipe
from specflow.workflow.store import ArtifactStore
from tests.cli.support import document, specflow
from tests.simulation.helpers import TABLE, random_requests


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specflow.simulation.predict.REQUEST_ROUNDS", 400)
    monkeypatch.setattr("specflow.simulation.predict.MOST_ROUNDS", 100)
    monkeypatch.setattr("specflow.simulation.predict.FEWEST_ROUNDS", 40)


def make(root: Path, kind: str, files: dict[str, str], *, drafter: str = "", target: str = "t", item: str = "") -> str:
    store, name = ArtifactStore(root), item or None
    inputs = {"target": [target], **({"drafter": [drafter]} if drafter else {})}
    key = hashlib.sha256(f"{kind}{inputs}{files}".encode()).hexdigest()
    attempt = Attempt(store, Recipe(kind=kind, key=key, stage=kind, item=name, code_version="1", parameters={},
                                    key_parameters={}, inputs=inputs))  # fmt: skip
    attempt.prepare()
    for file, text in files.items():
        (attempt.output / file).write_text(text)
    attempt.commit({})
    return key


def costs(root: Path, *, target: str = "t") -> str:
    conditions = {
        "engine": {"name": "embedded", "precision": "fp32", "threads": 1}, "hardware": {"cpu": "a processor"},
        "context": 64,
    }  # fmt: skip
    record = {"conditions": conditions, "tables": {"additive": table_as_json(TABLE)}}
    return make(root, "costs", {"costs.json": json.dumps(record)}, target=target)


def benchmark(root: Path, name: str, *, drafter: str, confident: bool, beside: float, target: str = "t") -> str:
    requests = random_requests(requests=20, confident=confident)
    parts: dict[str, Any] = {"draft_seconds": beside, "state_seconds": 0.0, "other_seconds": 0.0}
    lines = [{"rounds": [{**r, **parts} for r in request]} for request in requests]
    total = {
        "plain": {"tokens_per_second": 49.0, "prefill_seconds": 0.2}, "speculative": {"tokens_per_second": 100.0},
    }  # fmt: skip
    files = {
        "rounds.jsonl": "".join(json.dumps(line) + "\n" for line in lines),
        "result.json": json.dumps({"total": total, "dataset": {"prompts": 20, "repeats": 1}}),
    }
    return make(root, "benchmark", files, drafter=drafter, target=target, item=name)


def test_advice(tmp_path: Path) -> None:
    benchmark(tmp_path, "sure", drafter="old", confident=True, beside=9.0)
    kept = benchmark(tmp_path, "sure", drafter="new", confident=True, beside=0.001)
    benchmark(tmp_path, "slow", drafter="slow", confident=False, beside=0.05)
    benchmark(tmp_path, "foreign", drafter="f", confident=False, beside=0.0, target="other")
    sts = make(
        tmp_path, "calibration", {"sts.json": '{"temperatures": [1.0, 1.0, 1.0, 1.0]}', "records.jsonl": ""},
        drafter="new", item="sure",
    )  # fmt: skip
    table = costs(tmp_path)
    found = document(specflow("advise", "--store", tmp_path, "--concurrency", "4", "--json"))
    assert found["load"] == {"concurrency": 4, "rate": None}
    assert found["artifacts"]["costs"] == table
    assert set(found["artifacts"]["drafters"]) == {"sure", "slow"}
    assert found["artifacts"]["drafters"]["sure"] == {"benchmark": kept, "calibration": sts}
    assert found["best"]["drafter"] == "sure"
    assert found["best"]["times_plain"] > 1.5
    assert {(o["drafter"], o["policy"]) for o in found["options"]} == {
        (None, "plain"), ("slow", "fixed"), ("sure", "fixed"), ("sure", "causal"), ("sure", "lagged"),
    }  # fmt: skip
    assert [row["concurrency"] for row in found["curve"]][-1] == 512
    assert "costs measured on: embedded engine, fp32, 1 threads, a processor, 64 positions of context" in found["notes"]
    shown = specflow("advise", "--store", tmp_path, "--concurrency", "4", "--drafter", "slow")
    assert shown.exit_code == 0, shown.output
    assert "lagged" not in shown.stdout
    assert "slow: no confidence, so a scheduler has nothing to go by" in shown.stdout
    assert shown.stdout.rstrip().splitlines()[-1].startswith("use no drafter: nothing is faster here; expect ")


def test_random_arrivals_and_the_sentence(tmp_path: Path) -> None:
    benchmark(tmp_path, "sure", drafter="new", confident=False, beside=0.0)
    costs(tmp_path)
    shown = specflow("advise", "--store", tmp_path, "--rate", "0.5")
    assert shown.exit_code == 0, shown.output
    assert "8 requests at a time, 0.5 a second at random" in shown.stdout
    assert "seconds/request" in shown.stdout
    assert shown.stdout.rstrip().splitlines()[-1].startswith("use drafter sure, verify ")


def test_what_is_missing_is_told_at_once(tmp_path: Path) -> None:
    result = specflow("advise", "--store", tmp_path, "--rate", "0", "--json")
    assert result.exit_code == 2
    assert [e["message"] for e in document(result)["errors"]] == [
        "not a rate", "no cost table in the store", "no drafter with a benchmark or a calibration in the store",
    ]  # fmt: skip
    assert "run `specflow profile`" in result.stderr
    costs(tmp_path)
    benchmark(tmp_path, "sure", drafter="new", confident=False, beside=0.0)
    result = specflow("advise", "--store", tmp_path, "--drafter", "shure", "--json")
    assert (result.exit_code, len(document(result)["errors"])) == (2, 1)
    assert "no drafter 'shure'" in document(result)["errors"][0]["message"]
