"""How late the load generator's own event loop is: what it adds to every time that it measures."""

from __future__ import annotations

import asyncio
import gc
import time

from specflow.serving.load.samples import Generator

EVERY = 1 / 64
"""Seconds; a power of two, which leaves the sums of a virtual clock exact."""


class Lag:
    """``async with Lag() as lag: ...``; afterwards ``lag.found``.

    Inside, the garbage collector leaves alone what was there before: looking through all of it takes tens of
    milliseconds, in which nothing that arrives is stamped.
    """

    async def __aenter__(self) -> Lag:
        gc.freeze()
        self._total = self._worst = 0.0
        self._count = 0
        self._cpu = time.process_time()
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        gc.unfreeze()
        self._task.cancel()
        self.found = Generator(
            lag_mean=self._total / max(self._count, 1),
            lag_worst=self._worst,
            cpu_seconds=time.process_time() - self._cpu,
        )

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begin = loop.time()
            await asyncio.sleep(EVERY)
            late = loop.time() - begin - EVERY
            self._total, self._worst, self._count = self._total + late, max(self._worst, late), self._count + 1
