"""An event loop whose time jumps to the next thing that is due, and a server in it whose answers are scripts.

Nothing waits, and every time that is measured is exactly the script's.
"""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

T = TypeVar("T")
Chunk = bytes | Exception


class _Jumping(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("nothing is due: this would wait for ever")
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


@dataclass
class Script:
    """One reply: ``chunks`` are pieces with the seconds after the request at which each arrives."""

    chunks: Sequence[tuple[float, Chunk]] = ()
    status: int = 200
    refuse: bool = False
    """No connection at all."""


@dataclass
class ScriptedServer(httpx.AsyncBaseTransport):
    """``script(n, body)`` decides on the n-th request (from 0); at ``dies_at`` every connection breaks for good."""

    script: Callable[[int, dict[str, Any]], Script]
    dies_at: float = float("inf")
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        loop = asyncio.get_running_loop()
        if loop.time() >= self.dies_at:
            raise httpx.ConnectError("refused")
        path = request.url.raw_path.decode()
        self.paths.append(path)
        if request.method == "GET" or path.startswith("/flush_cache"):
            return httpx.Response(200, json={})
        body = json.loads(request.content)
        self.bodies.append(body)
        script = self.script(len(self.bodies) - 1, body)
        if script.refuse:
            raise httpx.ConnectError("refused")
        return httpx.Response(script.status, stream=_Stream(self, script, loop.time()))


class _Stream(httpx.AsyncByteStream):
    def __init__(self, server: ScriptedServer, script: Script, began: float) -> None:
        self._server, self._script, self._began = server, script, began

    async def __aiter__(self) -> AsyncIterator[bytes]:
        server, loop = self._server, asyncio.get_running_loop()
        server.in_flight += 1
        server.most_in_flight = max(server.most_in_flight, server.in_flight)
        try:
            for after, chunk in self._script.chunks:
                due = min(self._began + after, server.dies_at)
                await asyncio.sleep(due - loop.time())
                if loop.time() >= server.dies_at:
                    raise httpx.ReadError("the connection was lost")
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
        finally:
            server.in_flight -= 1


def generate_event(tokens: int, *, finish: str | None = None, **meta: Any) -> bytes:
    """An event of SGLang's ``/generate`` with so many tokens so far."""
    reason = {"type": finish} if finish else None
    counts = {"completion_tokens": tokens, "prompt_tokens": 8, "cached_tokens": 0, "finish_reason": reason, **meta}
    return event({"text": "x" * tokens, "output_ids": [1] * tokens, "meta_info": counts})
