"""A real HTTP server on a local port whose streams are scripts; it speaks SGLang's interface and the OpenAI one."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.serving.virtual_time import DONE, Script, event, generate_event

Answer = Callable[[int, dict[str, Any]], Script]


class CannedServer:
    """``answer(n, body)`` is the n-th stream (from 0). An exception among its chunks cuts the connection.

    ``info``: what ``/server_info`` says; none: it is no SGLang. After ``dies_after`` streams the port and every
    connection are closed in the middle of the next one.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        info: dict[str, Any] | None = None,
        model: dict[str, Any] | None = None,
        dies_after: int | None = None,
    ) -> None:
        self.answer, self.info, self.model, self.dies_after = answer, info, model or {}, dies_after
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.connections = 0
        self.in_flight = self.most_in_flight = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)

    def __enter__(self) -> CannedServer:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stop.wait()
        server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
                content = await reader.readexactly(int(headers.get("content-length", 0)))
                path = lines[0].split(" ")[1]
                self.paths.append(path)
                if path in ("/generate", "/v1/chat/completions"):
                    await self._stream(writer, json.loads(content))
                else:
                    self._plain(writer, path)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _plain(self, writer: asyncio.StreamWriter, path: str) -> None:
        answers = {"/model_info": self.model, "/v1/models": {"data": [{"id": "m"}]}, "/flush_cache?timeout=30": {}}
        if self.info is not None:
            answers["/server_info"] = self.info
        data = json.dumps(answers.get(path, {})).encode()
        status = b"200 OK" if path in answers else b"404 Not Found"
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(data), data))

    async def _stream(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        number = len(self.bodies)
        self.bodies.append(body)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        began = self._loop.time()
        try:
            script = self.answer(number, body)
            head = b"HTTP/1.1 %d X\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            writer.write(head % script.status)
            for after, chunk in script.chunks:
                await asyncio.sleep(began + after - self._loop.time())
                if isinstance(chunk, Exception):
                    writer.transport.abort()
                    raise ConnectionError
                writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                if self.dies_after is not None and number >= self.dies_after:
                    self._stop.set()
            writer.write(b"0\r\n\r\n")
        finally:
            self.in_flight -= 1


def generated(tokens: int, *, every: float, per_chunk: int = 1, **meta: Any) -> Script:
    """An answer of ``/generate``: a token at once, then ``per_chunk`` every so many seconds."""
    counts = [1, *range(1 + per_chunk, tokens + 1, per_chunk)]
    last = counts[-1]
    chunks = [
        (i * every, generate_event(n, finish="length" if n == last else None, **meta)) for i, n in enumerate(counts)
    ]
    return Script(chunks=[*chunks, (chunks[-1][0], DONE)])


def chatted(tokens: int, *, every: float) -> Script:
    """An answer of the chat protocol with counts in every chunk: first reasoning, then content."""
    chunks = [(0.0, event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))]
    for n in range(1, tokens + 1):
        name = "reasoning_content" if n < 3 else "content"
        choice = {"delta": {name: "x"}, "finish_reason": "stop" if n == tokens else None}
        usage = {
            "completion_tokens": n,
            "prompt_tokens": 5,
            "completion_tokens_details": {"reasoning_tokens": min(n, 2)},
        }
        chunks.append((n * every, event({"choices": [choice], "usage": usage})))
    return Script(chunks=[*chunks, (tokens * every, DONE)])
