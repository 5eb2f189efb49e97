"""A real HTTP server on a local port that speaks the chat part of the OpenAI protocol, misbehaves on demand and counts.

It answers with a function of the conversation, so that a test knows every answer before.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

MODEL = "the-target"


@dataclass
class Act:
    """What is done with one request."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] | str | None = None
    """In place of the completion."""
    wait: float = 0.0
    drop: bool = False
    """Close the connection without a reply."""
    hang: bool = False
    """Never reply."""


def completion(text: str, *, finish: str = "stop", **choice: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, **choice.pop("message", {})}
    return {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": finish, **choice}],
        "usage": {"completion_tokens": len(text.split())},
    }


def echo(body: dict[str, Any]) -> dict[str, Any]:
    return completion(f"reply to {body['messages'][-1]['content']}")


class FakeServer:
    """``behave(n, body)`` decides on the n-th chat request (from 0); ``answer(body)`` is the completion."""

    def __init__(
        self,
        *,
        answer: Callable[[dict[str, Any]], dict[str, Any]] = echo,
        behave: Callable[[int, dict[str, Any]], Act] = lambda n, body: Act(),
        models: tuple[str, ...] = (MODEL,),
        port: int = 0,
    ) -> None:
        self.answer, self.behave, self.models = answer, behave, models
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.asked: Counter[str] = Counter()
        """Requests by the text of the last message."""
        self.answered: Counter[str] = Counter()
        self.in_flight = self.most_in_flight = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._ready = threading.Event()
        self._wanted_port = port
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> FakeServer:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.die()
        self._thread.join(10)

    def die(self) -> None:
        """Close the port and every connection, as a killed process would."""
        with suppress(RuntimeError):  # dead already
            self._loop.call_soon_threadsafe(self._stop.set)

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", self._wanted_port)
        self.port = int(server.sockets[0].getsockname()[1])
        self._ready.set()
        await self._stop.wait()
        server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
                self.keys.add(headers.get("authorization", ""))
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if "/models" in lines[0]:
                    await self._send(writer, Act(body={"data": [{"id": name} for name in self.models]}), {})
                    continue
                if not await self._chat(writer, json.loads(body)):
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _chat(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> bool:
        name = str(body["messages"][-1]["content"])
        number = len(self.bodies)
        self.bodies.append(body)
        self.asked[name] += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            act = self.behave(number, body)
            if act.hang:
                await asyncio.Event().wait()
            await asyncio.sleep(act.wait)
            if act.drop:
                writer.transport.abort()
                return False
            await self._send(writer, act, self.answer(body))
            self.answered[name] += act.status == 200
            return True
        finally:
            self.in_flight -= 1

    async def _send(self, writer: asyncio.StreamWriter, act: Act, completed: dict[str, Any]) -> None:
        body = act.body if act.body is not None else (completed if act.status == 200 else {"error": "not now"})
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(data)), **act.headers}
        head = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
        writer.write(f"HTTP/1.1 {act.status} X\r\n{head}\r\n".encode() + data)
        await writer.drain()
