"""The report across runs: its figures, its lineage, and how it behaves in a browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from specflow.reporting.history.data import (
    GraphNode,
    HistoryData,
    Lineage,
    Measurement,
    RegisteredDrafter,
    Run,
    StageCost,
)
from specflow.reporting.history.graph import GAP_X, WIDTH, lineage_svg
from specflow.reporting.history.page import render_history
from tests.reporting.browser import browser, opened_browser

START = datetime(2026, 3, 1, 4, 0, tzinfo=UTC)
STAGES = ("regenerate", "tokenize", "capture", "train", "verify", "compare")


def run(number: int, *, promoted: bool, rate: float, before: float, drafter: str | None) -> Run:
    best = {"name": "dflash", "drafter": f"{number}" * 64, "tokens_per_second": rate, "tau": 2 + number / 10,
            "gain": {"ratio": rate / before, "low": rate / before - 0.05, "high": rate / before + 0.05}}  # fmt: skip
    decision: dict[str, Any] = {
        "best": best,
        "candidates": [best],
        "baseline": {"drafter": drafter, "tokens_per_second": before, "tau": None if drafter is None else 2.0},
        "plain_tokens_per_second": 20.0,
        "rule": {"concurrency": 4},
    }
    costs = [StageCost(stage=s, made=1, reused=number, seconds=10.0 / number, bytes=10**6) for s in STAGES]
    outcome = "promoted" if promoted else "kept"
    why = "dflash is quick <b>enough</b>" if promoted else "dflash is 1.01× as quick; its lower end must reach 1.020"
    return Run(
        time=START + timedelta(days=number), service="chat", decision=decision, outcome=outcome, reason=why, costs=costs
    )


@pytest.fixture(scope="module")
def data() -> HistoryData:
    runs = [
        run(1, promoted=True, rate=30, before=20, drafter=None),
        run(2, promoted=False, rate=30.5, before=30, drafter="1" * 64),
        run(3, promoted=True, rate=36, before=30, drafter="1" * 64),
    ]
    measured = [
        Measurement(
            time=r.time,
            drafter="dflash",
            key=r.decision["best"]["drafter"],
            tokens_per_second=r.decision["best"]["tokens_per_second"],
            tau=r.decision["best"]["tau"],
            plain_tokens_per_second=20.0,
            promoted=r.outcome == "promoted",
        )
        for r in runs
    ]
    drafters = [
        RegisteredDrafter(service="chat", key=f"{n}" * 64, name="dflash", state=state, since=START, reason="", tau=2.3,
                          tokens_per_second=30.0)
        for n, state in enumerate(("retired", "candidate", "promoted"), start=1)
    ]  # fmt: skip
    nodes = [
        GraphNode(id="t", stage="target", label="target abcd", detail="1.0 s, 2.0 MB"),
        GraphNode(id="r", stage="regenerate", label="regenerate 3 slices", detail="3.0 s, 1.0 MB", needs=["t"]),
        GraphNode(id="k", stage="tokenize", label="tokenize 3 slices", detail="1.0 s, 1.0 MB", needs=["r", "t"]),
        GraphNode(id="d", stage="train", label="train <dflash>", detail="9.0 s, 1.0 MB", needs=["k", "t"], main=True),
    ]
    return HistoryData(
        title="Drafters <of> chat",
        measurements=measured,
        drafters=drafters,
        runs=runs,
        lineages=[Lineage(service="chat", note="What it was made from.", nodes=nodes)],
        costs=runs[0].costs,
    )


@pytest.fixture(scope="module")
def page(data: HistoryData) -> str:
    return render_history(data)


def figure(page: str, name: str) -> dict[str, Any]:
    found = re.search(rf'<script type="application/json" id="{name}-spec">(.*?)</script>', page, re.S)
    assert found is not None
    spec: dict[str, Any] = json.loads(found.group(1))
    return spec


def test_figures_are_the_measurements(page: str) -> None:
    lines = {trace["name"]: trace for trace in figure(page, "time-tokens_per_second")["data"]}
    assert lines["dflash"]["y"] == [30, 30.5, 36]
    assert lines["plain decoding"]["y"] == [20, 20, 20]
    assert lines["promoted"]["y"] == [30, 36]
    assert lines["promoted"]["x"] == [lines["dflash"]["x"][0], lines["dflash"]["x"][2]]
    assert {t["name"]: t["y"] for t in figure(page, "time-tau")["data"]}["dflash"] == [2.1, 2.2, 2.3]
    costs = figure(page, "cost-runs")["data"]
    assert [trace["name"] for trace in costs] == list(STAGES)
    assert costs[0]["y"] == [pytest.approx(10.0), pytest.approx(5.0), pytest.approx(10 / 3)]


def test_no_two_stages_look_alike() -> None:
    stages = [f"stage-{number}" for number in range(12)]
    costs = [StageCost(stage=name, made=1, seconds=1.0) for name in stages]
    only = replace(run(1, promoted=True, rate=30, before=20, drafter=None), costs=costs)
    bars = figure(render_history(HistoryData(title="x", runs=[only], costs=costs)), "cost-runs")["data"]
    assert len({(bar["marker"]["color"], bar["marker"]["pattern"]["shape"]) for bar in bars}) == len(stages)


def test_page_says_what_happened_and_loads_nothing(page: str, data: HistoryData) -> None:
    assert "3 retrainings, 2 promoted. Promoted now: chat: dflash 333333333333" in page
    assert "its lower end must reach 1.020" in page
    assert "quick &lt;b&gt;enough&lt;/b&gt;" in page
    assert "<title>Drafters &lt;of&gt; chat</title>" in page
    body = page.split("<script>")[0]
    assert not re.search(r'(src|href)="', body)
    assert body.count("1.20×") == 2  # card and row of the newest decision
    assert "60.0" in body, "seconds of all stages"
    assert render_history(data) == page


def test_a_node_stands_behind_what_it_needs(data: HistoryData) -> None:
    svg = lineage_svg(data.lineages[0].nodes)
    boxes = [int(x) for x in re.findall(r'<rect x="(\d+)"', svg)]
    assert boxes == [column * (WIDTH + GAP_X) for column in range(4)]
    assert svg.count("<path") == 5
    assert "train &lt;dflash&gt;" in svg
    assert svg.count('class="main"') == 1


def test_an_empty_store_has_a_page() -> None:
    assert "Nothing has been measured yet." in render_history(HistoryData(title="x"))


@pytest.mark.slow
@pytest.mark.skipif(browser() is None, reason="no Chromium here (Debian: apt-get install chromium)")
def test_the_page_in_a_browser(page: str, tmp_path: Path) -> None:
    file = tmp_path / "history.html"
    file.write_text(page, encoding="utf-8")
    colours = set()
    with opened_browser() as tab:
        for width in (1280, 390):
            for dark in (False, True):
                tab.open(file, width=width, dark=dark)
                assert tab.value("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
                assert tab.value("document.querySelectorAll('.plot .main-svg').length") >= 3, "figures are drawn"
                assert tab.value("Math.min(...[...document.querySelectorAll('.plot')].map(e => e.clientWidth))") >= 250
                colours.add(tab.value("getComputedStyle(document.body).backgroundColor"))
                tab.picture(tmp_path / f"history-{width}-{'dark' if dark else 'light'}.png")
                assert tab.complaints == []
        assert set(tab.requests) == {file.as_uri()}
    assert len(colours) == 2, "light and dark differ"


@pytest.mark.slow
@pytest.mark.skipif(browser() is None, reason="no Chromium here (Debian: apt-get install chromium)")
def test_the_browser_sees_errors_and_requests(tmp_path: Path) -> None:
    file = tmp_path / "bad.html"
    file.write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("no"); throw new Error("oh")</script>')
    with opened_browser() as tab:
        tab.open(file, width=390)
        assert "http://127.0.0.1:9/x.png" in tab.requests
        assert sum(word in complaint for complaint in tab.complaints for word in ('"no"', "oh")) >= 2
