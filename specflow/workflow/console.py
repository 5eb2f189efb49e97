"""What a run prints: progress bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TextIO

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from specflow.workflow.figures import figures_panel, figures_text
from specflow.workflow.results import NodeResult, key_metrics

LINE_SECONDS = 5.0
"""Between two plain lines of one progress."""
NONE: Mapping[str, float] = MappingProxyType({})


class Console(Protocol):
    """Where a run shows what it does. Handles of progress bars are the stage's own numbers."""

    def message(self, text: str) -> None: ...

    def node_started(self, name: str, reason: str) -> None: ...

    def log(self, name: str, text: str) -> None: ...

    def progress_start(self, number: int, description: str, total: float, unit: str) -> None: ...

    def progress(self, number: int, done: float, note: str, figures: Mapping[str, float] = NONE) -> None: ...

    def progress_end(self, number: int) -> None: ...

    def node_finished(self, result: NodeResult) -> None: ...

    def close(self) -> None:
        """Remove what is still drawn; safe to call twice."""
        ...


def make_console(stream: TextIO | None = None) -> Console:
    """Bars if the stream (standard output) is a terminal, plain lines if not."""
    output = stream or sys.stdout
    return TerminalConsole(RichConsole(file=output)) if output.isatty() else PlainConsole(output)


def _duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def _rate(done: float, seconds: float, unit: str) -> str:
    rate = done / seconds if seconds > 0 else 0.0
    return f"{rate:.3g} {unit}/s"


def _result_line(result: NodeResult) -> str:
    line = f"{result.status:<11} {result.id:<20} {result.key[:12]}  {result.seconds:7.1f} s"
    if result.status == "failed":
        return f"{line}  {result.message}\n            log: {result.log}"
    details = result.message if result.status == "not run" else key_metrics(result.metrics)
    return f"{line}  {details}".rstrip()


@dataclass(slots=True)
class _Bar:
    description: str
    total: float
    unit: str
    started: float = field(default_factory=lambda: time.monotonic())
    printed: float = field(default_factory=lambda: time.monotonic())
    done: float = 0.0
    note: str = ""

    def line(self, now: float) -> str:
        seconds = now - self.started
        left = _duration((self.total - self.done) * seconds / self.done) if self.done else "unknown"
        share = f"{self.done:g}/{self.total:g} {self.unit}"
        return f"{self.description}: {share}, {_rate(self.done, seconds, self.unit)}, {left} left {self.note}".rstrip()


class PlainConsole:
    """Lines without control characters, at most one per progress in five seconds."""

    def __init__(self, stream: TextIO, *, line_seconds: float = LINE_SECONDS) -> None:
        self._stream, self._line_seconds = stream, line_seconds
        self._bars: dict[int, _Bar] = {}

    def message(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def node_started(self, name: str, reason: str) -> None:
        self.message(f"running     {name:<20} {reason}")

    def log(self, name: str, text: str) -> None:
        self.message("\n".join(f"  {name}: {line}" for line in text.splitlines() or [""]))

    def progress_start(self, number: int, description: str, total: float, unit: str) -> None:
        self._bars[number] = _Bar(description, total, unit)

    def progress(self, number: int, done: float, note: str, figures: Mapping[str, float] = NONE) -> None:
        bar = self._bars[number]
        bar.done, bar.note = done, ", ".join(filter(None, (note, figures_text(figures))))
        now = time.monotonic()
        if now - bar.printed >= self._line_seconds:
            bar.printed = now
            self.message(f"  {bar.line(now)}")

    def progress_end(self, number: int) -> None:
        bar = self._bars.pop(number, None)
        now = time.monotonic()
        if bar and now - bar.started >= self._line_seconds:
            seconds = now - bar.started
            rate = _rate(bar.done, seconds, bar.unit)
            self.message(
                f"  {bar.description}: {bar.done:g} {bar.unit} in {_duration(seconds)}, {rate} {bar.note}".rstrip()
            )

    def node_finished(self, result: NodeResult) -> None:
        self._bars.clear()
        self.message(_result_line(result))

    def close(self) -> None:
        self._bars.clear()


_COLOURS = {"made": "green", "cached": "cyan", "failed": "bold red", "not run": "yellow", "interrupted": "yellow"}


class TerminalConsole:
    """Rich bars with rate and time left, and a panel where a stage has figures, below the lines of what is finished."""

    def __init__(self, console: RichConsole) -> None:
        self._console = console
        self._bars: dict[int, tuple[TaskID, str, float]] = {}
        self._figures: dict[int, Mapping[str, float]] = {}
        self._progress: Progress | None = None
        self._live: Live | None = None

    def message(self, text: str) -> None:
        self._console.print(escape(text), highlight=False, soft_wrap=True)

    def node_started(self, name: str, reason: str) -> None:
        self._console.print(
            f"[bold]running[/bold]     {escape(f'{name:<20} {reason}')}", highlight=False, soft_wrap=True
        )

    def log(self, name: str, text: str) -> None:
        self.message("\n".join(f"  {name}: {line}" for line in text.splitlines() or [""]))

    def progress_start(self, number: int, description: str, total: float, unit: str) -> None:
        if self._progress is None:
            self._progress = Progress(
                TextColumn("  {task.description}"),
                BarColumn(),
                TextColumn("{task.completed:g}/{task.total:g} {task.fields[unit]}"),
                TextColumn("{task.fields[rate]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=self._console,
            )
            self._live = Live(get_renderable=self._render, console=self._console, transient=True)
            self._live.start()
        task = self._progress.add_task(escape(description), total=total, unit=unit, rate="", note="")
        self._bars[number] = (task, unit, time.monotonic())

    def progress(self, number: int, done: float, note: str, figures: Mapping[str, float] = NONE) -> None:
        if self._progress and number in self._bars:
            task, unit, started = self._bars[number]
            rate = _rate(done, time.monotonic() - started, unit)
            self._progress.update(task, completed=done, note=escape(note), rate=rate)
            if figures:
                self._figures[number] = figures

    def progress_end(self, number: int) -> None:
        if self._progress and number in self._bars:
            self._progress.remove_task(self._bars.pop(number)[0])
            self._figures.pop(number, None)
        if not self._bars:
            self.close()

    def _render(self) -> Group:
        """Called by Rich's thread, so it looks at copies."""
        progress, figures = self._progress, dict(self._figures)
        if progress is None:
            return Group()
        drawn = {
            task: (unit, figures[number]) for number, (task, unit, _) in list(self._bars.items()) if number in figures
        }
        panels = [self._panel(task, *drawn[task.id]) for task in progress.tasks if task.id in drawn]
        return Group(*panels, progress)

    @staticmethod
    def _panel(task: Task, unit: str, figures: Mapping[str, float]) -> Panel:
        left = "?" if task.time_remaining is None else _duration(task.time_remaining)
        done = f"{task.completed:g}/{task.total or 0:g} {unit}"
        return figures_panel(task.description, figures, done=done, left=left)

    def node_finished(self, result: NodeResult) -> None:
        self.close()
        status, colour = f"{result.status:<11}", _COLOURS[result.status]
        rest = escape(_result_line(result).removeprefix(status))
        self._console.print(f"[{colour}]{status}[/]{rest}", highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self._live:
            self._live.stop()
        self._live = self._progress = None
        self._bars.clear()
        self._figures.clear()


@contextmanager
def closing_console(console: Console) -> Iterator[Console]:
    """Leaves the terminal as it was, whatever happens."""
    try:
        yield console
    finally:
        console.close()
