"""The network under httpx: HTTP/1.1 however it is cut, and real connections that break."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specflow.config.sampling import SamplingParams
from specflow.serving.load.cells import Cell
from specflow.serving.load.framing import Body, FramingError, read_head
from specflow.serving.load.generator import Conditions, Endpoint, run_block
from specflow.serving.load.protocols import Asked, Chat, Generate
from specflow.serving.load.samples import Block
from specflow.serving.load.wire import Wire
from specflow.targets.retrying import ServerError, http_client
from tests.serving.canned import CannedServer, chatted, generated
from tests.serving.virtual_time import Script, generate_event

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CHUNKED = b"5\r\nhello\r\n1;x=y\r\n \r\nA\r\n\r\n world\r\n\r\n0\r\nTrailer: 1\r\n\r\n"


@given(st.lists(st.integers(0, len(CHUNKED)), max_size=12))
def test_a_chunked_body_however_it_is_cut(cuts: list[int]) -> None:
    body = Body([(b"transfer-encoding", b"chunked")])
    found = b""
    for a, b in pairwise([0, *sorted(cuts), len(CHUNKED)]):
        assert not body.ended or a == len(CHUNKED)
        found += body.feed(CHUNKED[a:b])
    assert found == b"hello \r\n world\r\n"
    assert body.ended


def test_a_body_of_a_length_and_one_up_to_the_end() -> None:
    body = Body([(b"content-length", b"5")])
    assert (body.feed(b"hel"), body.ended) == (b"hel", False)
    assert (body.feed(b"lo"), body.ended) == (b"lo", True)
    assert Body([(b"content-length", b"0")]).ended
    endless = Body([])
    assert (endless.feed(b"x"), endless.ended, endless.to_the_end) == (b"x", False, True)


def test_a_head_and_what_is_none() -> None:
    assert read_head(b"HTTP/1.1 200 OK\r\nA-b:  c \r\nD:") == (200, [(b"a-b", b"c"), (b"d", b"")])
    for wrong in (b"HTTP/2 200", b"nonsense", b"HTTP/1.1 abc"):
        with pytest.raises(FramingError, match="status line"):
            read_head(wrong)
    with pytest.raises(FramingError, match="size of a chunk"):
        Body([(b"transfer-encoding", b"chunked")]).feed(b"xyz\r\n")


def run(server: CannedServer, *, requests: int, concurrency: int, dialect: Generate | Chat | None = None) -> Block:
    asked = tuple(
        Asked(id=f"p{i}", kind="k", ids=(i,), messages=({"role": "user", "content": "hi"},)) for i in range(requests)
    )
    cell = Cell(dataset="k", sampling_name="greedy", sampling=SamplingParams(), asked=asked, concurrency=concurrency)
    endpoint = Endpoint(url=server.url, dialect=dialect or Generate(), timeout=60.0)
    conditions = Conditions(max_new_tokens=64, cache="cold")
    return asyncio.run(run_block(endpoint, cell, conditions, mode="drafter", repeat=0))


def test_256_streams_at_once_arrive_whole() -> None:
    with CannedServer(lambda n, body: generated(13, every=0.05, per_chunk=3)) as server:
        block = run(server, requests=512, concurrency=256)
        assert server.most_in_flight == 256
        assert server.connections <= 257  # those of the first half are used again
    assert len(block.samples) == 512
    assert {s.counters.tokens for s in block.samples} == {13}
    for found in block.samples:
        # However many chunks came together at a busy start, each token after the first arrival is counted once.
        assert found.arrivals[-1].tokens == 13
        assert sum(count for _, count in found.between_tokens or ()) == found.decode_tokens


def test_chat_over_a_real_connection() -> None:
    with CannedServer(lambda n, body: chatted(5, every=0.01)) as server:
        block = run(server, requests=3, concurrency=2, dialect=Chat(model="m"))
    assert [s.counters.tokens for s in block.samples] == [5, 5, 5]
    assert [s.counters.reasoning_tokens for s in block.samples] == [2, 2, 2]
    assert all(s.first_token >= 0.01 for s in block.samples)


def test_a_connection_that_is_cut_is_a_failure() -> None:
    cut = Script(chunks=[(0.0, generate_event(1)), (0.01, ConnectionError())])
    with CannedServer(lambda n, body: cut if n % 3 == 1 else generated(4, every=0.01)) as server:
        block = run(server, requests=6, concurrency=1)
    assert [(f.number, f.reason) for f in block.failures] == [(1, "broken_off"), (4, "broken_off")]
    assert len(block.samples) == 4


def test_a_connection_whose_answer_was_given_up_is_not_used_again() -> None:
    broken = Script(chunks=[(0.0, b"data: {broken\n\n"), (0.1, generate_event(1)), (0.2, generate_event(2))])
    with CannedServer(lambda n, body: broken if n == 0 else generated(3, every=0.01)) as server:
        block = run(server, requests=2, concurrency=1)
    assert [f.reason for f in block.failures] == ["not_the_protocol"]
    assert [s.counters.tokens for s in block.samples] == [3]


def test_a_server_that_dies_with_streams_under_way() -> None:
    with (
        CannedServer(lambda n, body: generated(40, every=0.01), dies_after=5) as server,
        pytest.raises(ServerError, match="does not answer any more"),
    ):
        run(server, requests=40, concurrency=4)
    assert len(server.bodies) < 12


def test_what_is_no_http_a_closed_port_and_a_silent_server() -> None:
    async def noise(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"SSH-2.0-x\r\n\r\n")

    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def ask(url: str) -> None:
        async with http_client(url, api_key=None, timeout=0.2, concurrency=1, transport=Wire()) as http:
            await http.get("/")

    async def get(handler: Handler) -> None:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        async with server:
            await ask(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")

    with pytest.raises(httpx.RemoteProtocolError, match="status line"):
        asyncio.run(get(noise))
    with pytest.raises(httpx.ReadTimeout):
        asyncio.run(get(silence))

    with pytest.raises(httpx.ConnectError):
        asyncio.run(ask("http://127.0.0.1:9"))
