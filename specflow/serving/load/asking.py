"""One request on one connection: an answer, or the reason why there is none. Nothing is tried again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from specflow.serving.load.events import END, Events
from specflow.serving.load.protocols import Asked, Dialect
from specflow.serving.load.replies import BadReply, Reply
from specflow.serving.load.samples import Failure, Sample
from specflow.serving.load.wire import Piece
from specflow.targets.retrying import CONNECT_SECONDS, failure_name, said

HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
LOST = frozenset({"no_connection", "broken_off"})
"""Failures after which it is asked whether the server is still there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """How requests reach a server."""

    http: httpx.AsyncClient
    dialect: Dialect
    timeout: float
    """Seconds for a whole answer."""
    api_key: str | None = None
    began: float = 0.0
    """When the block of requests began, by the clock of the event loop."""

    def now(self) -> float:
        return asyncio.get_running_loop().time() - self.began


async def ask(
    line: Line, asked: Asked, body: dict[str, Any], *, number: int, due: float | None = None
) -> Sample | Failure:
    """``due``: when it was to be sent; none: now."""
    sent = line.now()
    due = sent if due is None else due
    reply = line.dialect.reply()
    try:
        async with asyncio.timeout(line.timeout):
            await _stream(line, body, reply)
        finish, finished, counters = reply.finish()
    except (TimeoutError, httpx.ReadTimeout):
        problem, detail = "timeout", f"no end after {line.timeout:g} s"
    except BadReply as error:
        problem, detail = error.reason, error.detail
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        problem, detail = "no_connection", failure_name(error)
    except httpx.HTTPError as error:
        problem, detail = "broken_off", failure_name(error)
    else:
        return Sample(
            number=number,
            id=asked.id,
            kind=asked.kind,
            due=due,
            sent=sent,
            arrivals=reply.arrived(),
            finished=finished,
            finish=finish,
            counters=counters,
        )
    return Failure(
        number=number, id=asked.id, kind=asked.kind, due=due, at=line.now(), reason=problem, detail=detail[:300]
    )


async def _stream(line: Line, body: dict[str, Any], reply: Reply) -> None:
    events = Events()
    async with line.http.stream("POST", line.dialect.path, content=orjson.dumps(body), headers=HEADERS) as response:
        if not response.is_success:
            await response.aread()
            raise BadReply(f"http_{response.status_code}", said(response, key=line.api_key))
        async for piece in response.aiter_raw():
            at = line.now() if not isinstance(piece, Piece) else piece.at - line.began
            for data in events.feed(piece):
                if data == END:
                    continue
                try:
                    event = orjson.loads(data)
                except orjson.JSONDecodeError as error:
                    raise BadReply("not_the_protocol", f"an event that is no JSON ({error})") from error
                if not isinstance(event, dict):
                    raise BadReply("not_the_protocol", "an event that is no object")
                reply.take(event, at)


async def alive(line: Line) -> bool:
    """Whether the server still answers anything."""
    try:
        response = await line.http.get(line.dialect.health, timeout=CONNECT_SECONDS)
    except httpx.HTTPError:
        return False
    return response.status_code < 500
