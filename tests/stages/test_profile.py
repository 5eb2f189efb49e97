"""The profile stage on a tiny target, and with timings that are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from specflow.config.profile import ProfileParams
from specflow.costs.cells import Cell
from specflow.costs.sglang_tables import read_table
from specflow.costs.tables import AdditiveTable, RowTable
from specflow.stages import profile
from specflow.stages.contract import StageError
from tests.stages.pipeline_helpers import FakeContext, inputs, tiny_target

PARAMS = ProfileParams(
    requests=(1, 3), rows=(1, 4), context=6, samples=2, visits=2, uneven=False, precision="fp32", threads=1
)


def run(root: Path, monkeypatch: pytest.MonkeyPatch, seconds: Any) -> tuple[FakeContext, dict[str, Any]]:
    """Real passes; what the clock says of them is ``seconds(split)``."""
    from specflow.costs import timing

    real = timing.time_passes

    def faked(*arguments: Any, **named: Any) -> list[Cell]:
        cells = real(*arguments, **named)
        return [Cell(split=c.split, seconds=tuple(seconds(c.split) for _ in c.seconds)) for c in cells]

    monkeypatch.setattr("specflow.costs.timing.time_passes", faked)
    context = FakeContext(root / "run")
    return context, dict(profile.run(inputs(tiny_target(root)), PARAMS, context))


def test_tables_and_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, metrics = run(tmp_path, monkeypatch, lambda split: 0.01 + 0.002 * len(split) + 0.001 * sum(split))
    additive, by_rows = (read_table(context.output / name) for name in ("sps_additive.json", "sps.json"))
    assert isinstance(additive, AdditiveTable)
    assert isinstance(by_rows, RowTable)
    assert float(additive.seconds(3, 12)) == pytest.approx(0.028)
    assert (by_rows.rows, by_rows.rounds_per_second[0]) == ((1, 3, 4, 12), pytest.approx(1 / 0.013))
    record = json.loads((context.output / "costs.json").read_text())
    assert [c["split"] for c in record["cells"]] == [[1], [4], [1] * 3, [4] * 3]
    assert [len(c["seconds"]) for c in record["cells"]] == [4] * 4
    assert record["conditions"]["target"] == "t" * 64
    assert record["conditions"]["engine"] == {"name": "embedded", "precision": "fp32", "threads": 1, "device": "cpu"}
    assert (record["conditions"]["context"], record["conditions"]["hardware"]["threads"]) == (6, 1)
    assert record["spread"] == pytest.approx(0.028 / 0.013 - 1)
    assert metrics["largest_miss"] < 1e-6
    assert (context.output / "costs.png").read_bytes().startswith(b"\x89PNG")
    assert "13.00 ms (1 requests, 1 rows) to 28.00 ms (3, 12)" in context.messages[-1]
    assert context.progresses[0][1].done == context.progresses[0][0] == 8


def test_uneven_splits_are_timed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.stages.test_profile.PARAMS", PARAMS.model_copy(update={"uneven": True}))
    context, _ = run(tmp_path, monkeypatch, lambda split: 0.01 + 0.002 * len(split) + 0.001 * sum(split))
    record = json.loads((context.output / "costs.json").read_text())
    splits = [tuple(cell["split"]) for cell in record["cells"]]
    assert splits == [(1,), (4,), (1, 1, 1), (4, 4, 4), (2, 1, 1), (3, 2, 2), (4, 2, 1)]
    additive = read_table(context.output / "sps_additive.json")
    assert float(additive.seconds(3, 7)) == pytest.approx(0.01 + 0.006 + 0.007)


def test_a_flat_profile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StageError, match=r"these timings make no cost table:\n.*a flat table"):
        run(tmp_path, monkeypatch, lambda split: 0.01)
    assert not list(tmp_path.rglob("visits.jsonl")), "the next run would be refused again"


def test_sizes() -> None:
    for bad in ((1,), (2, 1), (0, 1), (1, 1)):
        with pytest.raises(ValidationError, match="not a row of sizes"):
            ProfileParams(rows=bad)
    assert profile.estimate(PARAMS).note == "24 passes of 4 shapes"
