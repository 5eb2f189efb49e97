"""A server that only streams: every answer is a script of chunks at fixed times. For ``load_generator.py``.

    python benchmarks/load_server.py --port 40123 --tokens 64 --per-chunk 1 --every 0.05

It speaks SGLang's ``/generate`` and keeps, of each answer, when it handed each chunk to the system; ``GET /stamps``
gives them, by the id in the request's ``input_ids``. Answers start when they are asked for, so that chunks of different
answers do not all fall together.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
from typing import Any

import orjson

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--per-chunk", type=int, default=1)
    parser.add_argument("--every", type=float, default=0.05, help="seconds between chunks")
    options = parser.parse_args()
    gc.disable()
    asyncio.run(_serve(options))


async def _serve(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    stamps: dict[int, list[float]] = {}
    chunks = _chunks(options.tokens, options.per_chunk)
    server = await loop.create_server(
        lambda: _Connection(loop, chunks, options.every, stamps), "127.0.0.1", options.port
    )
    print("ready", flush=True)
    await server.serve_forever()


def _chunks(tokens: int, per_chunk: int) -> list[bytes]:
    """The events of an answer, framed; text grows as SGLang's does."""
    found = []
    for last in range(per_chunk, tokens + per_chunk, per_chunk):
        count = min(last, tokens)
        finish = {"type": "length", "length": tokens} if count == tokens else None
        meta = {"completion_tokens": count, "prompt_tokens": 1, "cached_tokens": 0, "finish_reason": finish}
        event = orjson.dumps({"text": "word " * count, "output_ids": [1] * count, "meta_info": meta})
        data = b"data: " + event + b"\n\n"
        found.append(b"%x\r\n%s\r\n" % (len(data), data))
    return found


class _Connection(asyncio.Protocol):
    """One request at a time, each answered by the script."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, chunks: list[bytes], every: float, stamps: dict[int, list[float]]
    ) -> None:
        self._loop, self._chunks, self._every, self._stamps = loop, chunks, every, stamps
        self._read = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, found, body = self._read.partition(b"\r\n\r\n")
        if not found:
            return
        length = next((int(h[15:]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length:")), 0)
        if len(body) < length:
            return
        self._read = b""
        if head.startswith(b"POST /generate"):
            self._transport.write(HEAD)
            own = self._stamps.setdefault(int(orjson.loads(body)["input_ids"][0]), [])
            own.clear()
            self._send(0, self._loop.time() + self._every, own)
        else:
            reply = orjson.dumps(self._stamps if b" /stamps" in head else {}, option=orjson.OPT_NON_STR_KEYS)
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(reply), reply))

    def _send(self, number: int, due: float, stamps: list[float]) -> None:
        self._loop.call_at(due, self._now, number, due, stamps)

    def _now(self, number: int, due: float, stamps: list[float]) -> None:
        last = number + 1 == len(self._chunks)
        stamps.append(self._loop.time())
        self._transport.write(self._chunks[number] + (b"0\r\n\r\n" if last else b""))
        if not last:
            self._send(number + 1, due + self._every, stamps)


if __name__ == "__main__":
    main()
