"""Lines on a file, bars on a terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

from specflow.workflow import console as module
from specflow.workflow.console import PlainConsole, TerminalConsole, make_console
from specflow.workflow.results import NodeResult, RunResult, Status, key_metrics


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module.time, "monotonic", made.monotonic)
    return made


def result(status: Status, name: str = "train:small", message: str = "") -> NodeResult:
    return NodeResult(
        id=name,
        stage="train",
        kind="drafter",
        key="0123456789abcdef",
        status=status,
        seconds=61.25,
        message=message,
        metrics={"tau": 2.34567, "steps": 100, "by_kind": {"a": 1}, "note": "x" * 40},
        log=Path("/logs/train.log"),
    )


def test_plain_progress_has_rate_and_time_left_at_most_every_five_seconds(clock: Clock) -> None:
    text = io.StringIO()
    console = PlainConsole(text)
    console.progress_start(1, "decoding", 100, "rows")
    for _ in range(60):
        clock.now += 0.25
        console.progress(1, (clock.now - 100) * 4, "loss 1.5")
    console.progress_end(1)
    assert text.getvalue().splitlines() == [
        "  decoding: 20/100 rows, 4 rows/s, 0:20 left loss 1.5",
        "  decoding: 40/100 rows, 4 rows/s, 0:15 left loss 1.5",
        "  decoding: 60/100 rows, 4 rows/s, 0:10 left loss 1.5",
        "  decoding: 60 rows in 0:15, 4 rows/s loss 1.5",
    ]


def test_plain_lines_of_results() -> None:
    text = io.StringIO()
    console = make_console(text)
    assert isinstance(console, PlainConsole)
    console.node_finished(result("made"))
    console.node_finished(result("failed", message="no memory"))
    console.node_finished(result("not run", message="because capture failed"))
    assert text.getvalue().splitlines() == [
        "made        train:small          0123456789ab     61.2 s  tau 2.346  steps 100",
        "failed      train:small          0123456789ab     61.2 s  no memory",
        "            log: /logs/train.log",
        "not run     train:small          0123456789ab     61.2 s  because capture failed",
    ]


def test_terminal_shows_bars_and_keeps_brackets() -> None:
    text = io.StringIO()
    console = TerminalConsole(RichConsole(file=text, force_terminal=True, width=150))
    console.progress_start(1, "decoding [fast]", 10, "rows")
    console.progress(1, 5, "loss [red]1")
    console.log("train", "[bold]kept[/bold]")
    console.progress_end(1)
    console.node_finished(result("made"))
    shown = text.getvalue()
    assert "decoding [fast]" in shown
    assert "[bold]kept[/bold]" in shown
    assert "0123456789ab" in shown
    assert shown.endswith("\n")
    assert console._live is None


def test_key_metrics_are_the_short_ones() -> None:
    assert key_metrics({"a": 1, "b": 0.123456, "c": [1], "d": "word"}) == "a 1  b 0.1235  d word"


@pytest.mark.parametrize(
    ("statuses", "interrupted", "problem", "code"),
    [
        (["made", "cached"], False, "", 0),
        (["made", "failed"], False, "", 1),
        (["made", "not run"], False, "", 1),
        (["made", "cached"], False, "no server", 1),
        (["made", "interrupted"], True, "", 130),
        ([], False, "", 0),
    ],
)
def test_exit_codes(statuses: list[Status], interrupted: bool, problem: str, code: int) -> None:
    nodes = tuple(result(status) for status in statuses)
    made = RunResult(flow="f", name="r", nodes=nodes, seconds=1.0, interrupted=interrupted, problem=problem)
    assert made.exit_code == code
    assert made.as_json()["exit_code"] == code


FIGURES = {"loss": 2.34567, "tau": 1.5, "tokens/s": 12345.6, "anchors/s": 210.4}


def test_figures_are_a_line_on_a_file(clock: Clock) -> None:
    text = io.StringIO()
    console = PlainConsole(text)
    console.progress_start(1, "train", 100, "steps")
    clock.now += 10
    console.progress(1, 20, "", FIGURES)
    assert text.getvalue() == (
        "  train: 20/100 steps, 2 steps/s, 0:40 left loss 2.346, tau 1.500, 12,346 tokens/s, 210 anchors/s\n"
    )


def test_figures_are_a_panel_on_a_terminal() -> None:
    text = io.StringIO()
    console = TerminalConsole(RichConsole(file=text, force_terminal=True, width=100))
    console.progress_start(1, "train [x]", 100, "steps")
    console.progress(1, 20, "", FIGURES)
    shown = _plain(console)
    assert [line.split() for line in shown.splitlines()[1:3]] == [
        ["│", "2.346", "1.500", "12,346", "210", "20/100", "steps", "?", "│"],
        ["│", "loss", "tau", "tokens/s", "anchors/s", "done", "left", "│"],
    ]
    assert "train [x]" in shown.splitlines()[0]
    assert "20/100 steps" in shown.splitlines()[-1]
    console.progress_end(1)
    assert _plain(console).strip() == ""
    console.node_finished(result("made"))
    assert console._live is None


def _plain(console: TerminalConsole) -> str:
    drawn = RichConsole(file=io.StringIO(), width=100)
    drawn.print(console._render())
    assert isinstance(drawn.file, io.StringIO)
    return drawn.file.getvalue().rstrip("\n")
