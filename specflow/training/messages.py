"""What the first rank says, sent from its process to the one that started it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

from specflow.training.loop import Bar, Monitor


class Shown:
    """Messages of the first rank, passed on."""

    def __init__(self, monitor: Monitor, bars: ExitStack) -> None:
        self._monitor, self._bars = monitor, bars
        self._bar: Bar | None = None

    def handle(self, kind: str, values: list[Any]) -> None:
        if kind == "log":
            self._monitor.log(*values)
        elif kind == "progress":
            description, total, unit = values
            self._bar = self._bars.enter_context(self._monitor.progress(description, total=total, unit=unit))
        elif self._bar:
            getattr(self._bar, kind)(*values)


class Sending:
    """The monitor inside the first rank, and its bar."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def log(self, message: str) -> None:
        self._pipe.send(("log", message))

    @contextmanager
    def progress(self, description: str, *, total: float, unit: str = "rows") -> Iterator[Bar]:
        self._pipe.send(("progress", description, total, unit))
        yield self

    def advance(self, amount: float = 1) -> None:
        self._pipe.send(("advance", amount))

    def describe(self, text: str) -> None:
        self._pipe.send(("describe", text))

    def figures(self, values: Mapping[str, float]) -> None:
        self._pipe.send(("figures", dict(values)))
