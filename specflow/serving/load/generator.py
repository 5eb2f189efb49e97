"""The load generator: one block of requests against one server, in a closed or an open loop.

Its clock is the event loop's, so that a test can let time jump.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import httpx

from specflow.config.load import CacheState
from specflow.serving.load.asking import LOST, Line, alive, ask
from specflow.serving.load.cells import Cell
from specflow.serving.load.lag import Lag
from specflow.serving.load.protocols import Asked, Dialect
from specflow.serving.load.samples import Block, Failure, Sample
from specflow.serving.load.wire import Wire
from specflow.targets.retrying import CONNECT_SECONDS, ServerError, failure_name, http_client, said

OPEN_CONNECTIONS = 4096
"""Of an open loop: more requests than this in flight are a server that has stopped."""
FLUSH_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server and how it is asked."""

    url: str
    dialect: Dialect
    timeout: float
    api_key: str | None = None
    transport: httpx.AsyncBaseTransport | None = None
    """In place of the network."""

    def client(self, connections: int) -> httpx.AsyncClient:
        return http_client(
            self.url,
            api_key=self.api_key,
            timeout=self.timeout,
            concurrency=connections,
            transport=self.transport or Wire(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What holds for every block."""

    max_new_tokens: int
    cache: CacheState
    warmup_requests: int = 0


async def run_block(endpoint: Endpoint, cell: Cell, conditions: Conditions, *, mode: str, repeat: int) -> Block:
    """Send every request of the cell and wait for every answer.

    A request that fails is kept as a failure, and the others go on. Raises :class:`ServerError` where the server is not
    there any more: what it answered before is no measurement.
    """
    connections = cell.concurrency or OPEN_CONNECTIONS
    async with endpoint.client(connections) as http:
        line = Line(http=http, dialect=endpoint.dialect, timeout=endpoint.timeout, api_key=endpoint.api_key)
        await _prepare(line, cell, conditions)
        async with Lag() as lag:
            began = asyncio.get_running_loop().time()
            found = await _Run(replace(line, began=began), cell, conditions).all()
    return Block(
        mode=mode,
        cell=cell.name,
        repeat=repeat,
        seconds=max((s.finished if isinstance(s, Sample) else s.at for s in found), default=0.0),
        samples=tuple(s for s in found if isinstance(s, Sample)),
        failures=tuple(s for s in found if isinstance(s, Failure)),
        generator=lag.found,
        began=began,
    )


class _Run:
    def __init__(self, line: Line, cell: Cell, conditions: Conditions) -> None:
        self._line, self._cell = line, cell
        self._apart = conditions.cache == "cold"
        self._limit = conditions.max_new_tokens
        self._found: list[Sample | Failure] = []

    async def all(self) -> list[Sample | Failure]:
        """In the order of the requests."""
        try:
            async with asyncio.TaskGroup() as group:
                if self._cell.concurrency is not None:
                    left = iter(enumerate(self._cell.asked))
                    for _ in range(min(self._cell.concurrency, len(self._cell.asked))):
                        group.create_task(self._closed(left))
                else:
                    await self._open(group)
        except BaseExceptionGroup as errors:
            gone, others = errors.split(ServerError)
            if gone is None or others is not None:
                raise
            raise _first(gone) from None
        return sorted(self._found, key=lambda s: s.number)

    async def _closed(self, left: enumerate[Asked]) -> None:
        """One of the requests in flight: the next is sent when the last one's answer has ended."""
        for number, asked in left:
            await self._one(number, asked)

    async def _open(self, group: asyncio.TaskGroup) -> None:
        for (number, asked), due in zip(enumerate(self._cell.asked), self._cell.offsets, strict=True):
            await asyncio.sleep(max(0.0, due - self._line.now()))
            group.create_task(self._one(number, asked, due))

    async def _one(self, number: int, asked: Asked, due: float | None = None) -> None:
        body = self._line.dialect.body(
            asked, max_new_tokens=self._limit, sampling=self._cell.sampling, apart=self._apart
        )
        found = await ask(self._line, asked, body, number=number, due=due)
        self._found.append(found)
        if isinstance(found, Failure) and found.reason in LOST and not await alive(self._line):
            raise ServerError(f"the server does not answer any more; request {number + 1}: {found.detail}")


async def _prepare(line: Line, cell: Cell, conditions: Conditions) -> None:
    """Bring the prefix cache into the state that is asked for."""
    if line.dialect.flush is not None:
        await _flush(line, line.dialect.flush)
    if conditions.cache == "warm":
        once = {asked.id: asked for asked in cell.asked}.values()
        await ask_all(line, list(once), cell, max_new_tokens=1, apart=False)


async def ask_all(line: Line, asked: Sequence[Asked], cell: Cell, *, max_new_tokens: int, apart: bool) -> None:
    """Requests that are not measured, one after the other. Raises :class:`ServerError` where one fails."""
    for number, one in enumerate(asked):
        body = line.dialect.body(one, max_new_tokens=max_new_tokens, sampling=cell.sampling, apart=apart)
        found = await ask(line, one, body, number=number)
        if isinstance(found, Failure):
            raise ServerError(f"a request before the measurement failed: {found.reason}: {found.detail}")


async def warm_up(endpoint: Endpoint, cell: Cell, conditions: Conditions) -> None:
    """What a server does once, when it is asked for the first time, is done before the clock starts."""
    async with endpoint.client(1) as http:
        line = Line(http=http, dialect=endpoint.dialect, timeout=endpoint.timeout, api_key=endpoint.api_key)
        asked = cell.asked[: conditions.warmup_requests]
        await ask_all(line, asked, cell, max_new_tokens=conditions.max_new_tokens, apart=True)


async def _flush(line: Line, path: str) -> None:
    try:
        response = await line.http.post(path, timeout=max(FLUSH_SECONDS, CONNECT_SECONDS))
    except httpx.HTTPError as error:
        raise ServerError(f"its cache cannot be emptied: {failure_name(error)}") from error
    if not response.is_success:
        raise ServerError(f"its cache cannot be emptied: {said(response, key=line.api_key)}")


def _first(errors: BaseExceptionGroup[ServerError]) -> ServerError:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
