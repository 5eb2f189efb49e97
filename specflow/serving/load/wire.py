"""httpx's network for many streams at once: a piece is stamped when the event loop reads it from its socket.

httpx's own transport passes each piece through several layers that give way to other tasks, about a third of a
millisecond of processor time: with hundreds of streams a load generator would measure itself. Everything else of httpx
stays. One request at a time on a connection, HTTP/1.1 only.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx

from specflow.serving.load.framing import Body, FramingError, read_head

Place = tuple[str, str, int]


class Piece(bytes):
    """Content with the time, by the clock of the event loop, at which it arrived."""

    at: float


class Wire(httpx.AsyncBaseTransport):
    """Keeps connections that are free for the next request."""

    def __init__(self) -> None:
        self._free: dict[Place, list[_Connection]] = {}
        self._all: set[_Connection] = set()
        self._tls: ssl.SSLContext | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        timeouts = request.extensions.get("timeout", {})
        place = (
            request.url.scheme,
            request.url.host,
            request.url.port or (443 if request.url.scheme == "https" else 80),
        )
        connection = await self._connection(place, timeouts.get("connect"))
        try:
            connection.send(_written(request, await request.aread()))
            async with asyncio.timeout(timeouts.get("read")):
                status, headers = await connection.head()
        except TimeoutError as error:
            connection.close()
            raise httpx.ReadTimeout("no reply in time", request=request) from error
        except BaseException:
            connection.close()
            raise
        return httpx.Response(status, headers=headers, stream=_Content(self, place, connection))

    async def aclose(self) -> None:
        for connection in list(self._all):
            connection.close()

    def release(self, place: Place, connection: _Connection) -> None:
        """Free for another request, if its reply has come whole; otherwise it is closed."""
        if connection.reusable:
            self._free.setdefault(place, []).append(connection)
        else:
            connection.close()

    async def _connection(self, place: Place, timeout: float | None) -> _Connection:
        free = self._free.get(place, [])
        while free:
            connection = free.pop()
            if connection.open:
                return connection
        scheme, host, port = place
        if scheme == "https" and self._tls is None:
            self._tls = ssl.create_default_context()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                _, made = await loop.create_connection(
                    lambda: _Connection(loop, self._all), host, port, ssl=self._tls if scheme == "https" else None
                )
        except TimeoutError as error:
            raise httpx.ConnectTimeout("no connection in time") from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        return made


class _Connection(asyncio.Protocol):
    def __init__(self, loop: asyncio.AbstractEventLoop, all: set[_Connection]) -> None:
        self._loop, self._all = loop, all
        self._lost: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._raw = b""
        self._head: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._body: Body | None = None
        self._pieces: list[Piece] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._all.add(self)

    def data_received(self, data: bytes) -> None:
        at = self._loop.time()
        try:
            if self._body is None:
                self._raw += data
                head, found, data = self._raw.partition(b"\r\n\r\n")
                if not found:
                    return
                self._raw, self._head = b"", read_head(head)
                self._body = Body(self._head[1])
            content = self._body.feed(data)
        except FramingError as error:
            self._lost = httpx.RemoteProtocolError(str(error))
            content = b""
        if content:
            piece = Piece(content)
            piece.at = at
            self._pieces.append(piece)
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._all.discard(self)
        if self._body is not None and self._body.to_the_end and error is None:
            self._body.ended = True
        self._lost = self._lost or httpx.ReadError(str(error or "the server closed the connection"))
        self._wake()

    def send(self, data: bytes) -> None:
        self._head, self._body, self._pieces, self._raw = None, None, [], b""
        self._transport.write(data)

    async def head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        while self._head is None:
            await self._wait()
        return self._head

    async def pieces(self) -> AsyncIterator[bytes]:
        assert self._body is not None
        while True:
            ready, self._pieces = self._pieces, []
            for piece in ready:
                yield piece
            if self._pieces:
                continue
            if self._body.ended:
                return
            await self._wait()

    @property
    def open(self) -> bool:
        return self._lost is None and not self._transport.is_closing()

    @property
    def reusable(self) -> bool:
        done = self._body is not None and self._body.ended and not self._body.to_the_end
        closing = self._head is not None and (b"connection", b"close") in self._head[1]
        return self.open and done and not closing

    def close(self) -> None:
        self._transport.abort()

    async def _wait(self) -> None:
        """Until something has come. Raises what the connection was lost by."""
        if self._lost is not None:
            raise self._lost
        self._waiting = self._loop.create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class _Content(httpx.AsyncByteStream):
    def __init__(self, wire: Wire, place: Place, connection: _Connection) -> None:
        self._wire, self._place, self._connection = wire, place, connection

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._connection.pieces()

    async def aclose(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._wire.release(self._place, self._connection)


def _written(request: httpx.Request, body: bytes) -> bytes:
    lines = [b"%s %s HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
    lines += [b"%s: %s" % pair for pair in request.headers.raw]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
