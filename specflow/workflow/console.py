"""What a run prints: progress bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from rich.console import Console as RichConsole
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from specflow.workflow.results import NodeResult, key_metrics

LINE_SECONDS = 5.0
"""Between two plain lines of one progress."""


class Console(Protocol):
    """Where a run shows what it does. Handles of progress bars are the stage's own numbers."""

    def message(self, text: str) -> None: ...

    def node_started(self, name: str, reason: str) -> None: ...

    def log(self, name: str, text: str) -> None: ...

    def progress_start(self, number: int, description: str, total: float, unit: str) -> None: ...

    def progress(self, number: int, done: float, note: str) -> None: ...

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

    def progress(self, number: int, done: float, note: str) -> None:
        bar = self._bars[number]
        bar.done, bar.note = done, note
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
    """Rich bars with rate and time left, below the lines of what is finished."""

    def __init__(self, console: RichConsole) -> None:
        self._console = console
        self._bars: dict[int, tuple[TaskID, str, float]] = {}
        self._live: Progress | None = None

    def message(self, text: str) -> None:
        self._console.print(escape(text), highlight=False, soft_wrap=True)

    def node_started(self, name: str, reason: str) -> None:
        self._console.print(
            f"[bold]running[/bold]     {escape(f'{name:<20} {reason}')}", highlight=False, soft_wrap=True
        )

    def log(self, name: str, text: str) -> None:
        self.message("\n".join(f"  {name}: {line}" for line in text.splitlines() or [""]))

    def progress_start(self, number: int, description: str, total: float, unit: str) -> None:
        if self._live is None:
            self._live = Progress(
                TextColumn("  {task.description}"),
                BarColumn(),
                TextColumn("{task.completed:g}/{task.total:g} {task.fields[unit]}"),
                TextColumn("{task.fields[rate]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=self._console,
                transient=True,
            )
            self._live.start()
        task = self._live.add_task(escape(description), total=total, unit=unit, rate="", note="")
        self._bars[number] = (task, unit, time.monotonic())

    def progress(self, number: int, done: float, note: str) -> None:
        if self._live and number in self._bars:
            task, unit, started = self._bars[number]
            rate = _rate(done, time.monotonic() - started, unit)
            self._live.update(task, completed=done, note=escape(note), rate=rate)

    def progress_end(self, number: int) -> None:
        if self._live and number in self._bars:
            self._live.remove_task(self._bars.pop(number)[0])
        if not self._bars:
            self.close()

    def node_finished(self, result: NodeResult) -> None:
        self.close()
        status, colour = f"{result.status:<11}", _COLOURS[result.status]
        rest = escape(_result_line(result).removeprefix(status))
        self._console.print(f"[{colour}]{status}[/]{rest}", highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self._live:
            self._live.stop()
        self._live = None
        self._bars.clear()


@contextmanager
def closing_console(console: Console) -> Iterator[Console]:
    """Leaves the terminal as it was, whatever happens."""
    try:
        yield console
    finally:
        console.close()
