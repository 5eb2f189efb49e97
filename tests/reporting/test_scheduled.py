"""The scheduler's panel: figures of its rounds, and nothing where everything was verified."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specflow.decoding.granted_metrics import granted
from specflow.decoding.metrics import acceptance
from specflow.decoding.records import Generation, Round
from specflow.reporting.html import render_html
from specflow.reporting.scheduled import scheduled_panel
from tests.reporting.helpers import report_data


def generation() -> Generation:
    def of(proposed: int, verified: int, accepted: int) -> Round:
        return Round(
            proposed=proposed, verified=verified, accepted=accepted, delivered=accepted + 1, schedule_seconds=1e-4
        )

    rounds = [of(3, 3, 3), of(3, 3, 1), of(3, 2, 2), of(3, 2, 0), of(3, 0, 0), of(0, 0, 0)]
    return Generation(prompt_length=1, tokens=[1], finish="length", rounds=rounds)


def test_counters() -> None:
    found = granted([generation()], 3)
    assert (found["rounds"], found["rows"], found["rows_saved"], found["rounds_without_drafting"]) == (6, 16, 8, 1)
    assert found["committed_rows"] == 6 + 6
    assert [tuple(row[k] for k in ("judged", "accepted", "rejected", "cut")) for row in found["positions"]] == [
        (4, 3, 1, 1), (4, 2, 1, 0), (2, 1, 0, 1),
    ]  # fmt: skip
    # Of the rounds that accepted all before a position, each rejected it, accepted it or was cut there.
    for row, before in zip(found["positions"], (5, 3, 2), strict=True):
        assert row["accepted"] + row["rejected"] + row["cut"] == before


def test_acceptance_is_of_verified_positions() -> None:
    found = acceptance([generation()])
    assert [(r.total, r.count) for r in found.cumulative] == [(3, 4), (2, 4), (1, 2)]
    assert [(r.total, r.count) for r in found.conditional] == [(3, 4), (2, 3), (1, 1)]


def scheduler() -> dict[str, Any]:
    return {"mode": "lagged", "temperatures": [1.0] * 3, "granted": granted([generation()], 3)}


def test_the_panel() -> None:
    assert scheduled_panel({}) is None
    assert scheduled_panel({"scheduler": None}) is None
    panel = scheduled_panel({"scheduler": scheduler()})
    assert panel is not None
    assert panel["rows"][0] == ["1", "4", "67 %", "3", "1", "1", "75 %"]
    for part in ("Mode lagged", "16 rows verified, 2.67 a round", "8 saved, 33 %", "17 % of the rounds", "100 µs"):
        assert part in panel["note"]
    assert "not calibrated" not in panel["note"]
    silent = scheduled_panel({"scheduler": {**scheduler(), "temperatures": None}})
    assert silent is not None
    assert "not calibrated" in silent["note"]


def test_the_page_shows_it() -> None:
    data = report_data()
    assert "Rows that the scheduler granted" not in render_html(data)
    (drafter,) = data.drafters
    shown = replace(drafter, benchmark={**(drafter.benchmark or {}), "scheduler": scheduler()})
    page = render_html(replace(data, drafters=[shown]))
    assert "Rows that the scheduler granted" in page
    assert "16 rows verified" in page
