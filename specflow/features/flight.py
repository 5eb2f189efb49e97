"""Requests under way on a thread of their own, as many as a budget allows, ahead of whoever takes the answers."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class Flight(Generic[Result]):
    """``ask(index)`` runs for the indices of ``expect`` in their order; ``take(index)`` gives the answer.

    What is asked and not yet taken costs at most ``budget`` together and is at most ``most`` requests. An index whose
    own cost is above the budget goes alone.
    """

    def __init__(
        self,
        ask: Callable[[int], Coroutine[Any, Any, Result]],
        *,
        cost: Callable[[int], int],
        budget: int,
        most: int,
    ) -> None:
        self._ask, self._cost, self._budget, self._most = ask, cost, budget, most
        self._waiting: deque[int] = deque()
        self._under_way: dict[int, Future[Result]] = {}
        self._costs: dict[int, int] = {}
        self._loop = asyncio.new_event_loop()
        # A daemon: a server that hangs must not keep the process from ending.
        threading.Thread(target=self._loop.run_forever, name="flight", daemon=True).start()

    def expect(self, indices: Iterable[int]) -> None:
        """Ask for these next. Answers to others that are under way stay to be taken."""
        self._waiting = deque(i for i in indices if i not in self._under_way)
        self._fill()

    def take(self, index: int) -> Result:
        """The answer for ``index``, which is asked now if it was not before; raises what asking raised."""
        if index not in self._under_way:
            if index in self._waiting:
                self._waiting.remove(index)
            self._start(index)
        try:
            return self._under_way[index].result()
        finally:
            del self._under_way[index], self._costs[index]
            self._fill()

    def call(self, ask: Coroutine[Any, Any, Any]) -> Any:
        """Run something else on the thread and wait for it."""
        return asyncio.run_coroutine_threadsafe(ask, self._loop).result()

    def cancel(self) -> None:
        """Give up what is under way and ask nothing more."""
        self._waiting.clear()
        for future in self._under_way.values():
            future.cancel()
        self._under_way.clear()
        self._costs.clear()

    def close(self) -> None:
        self.cancel()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _fill(self) -> None:
        while self._waiting and len(self._under_way) < self._most:
            if self._under_way and sum(self._costs.values()) + self._cost(self._waiting[0]) > self._budget:
                return
            self._start(self._waiting.popleft())

    def _start(self, index: int) -> None:
        self._costs[index] = self._cost(index)
        self._under_way[index] = asyncio.run_coroutine_threadsafe(self._ask(index), self._loop)
