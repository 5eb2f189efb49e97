"""The load generator in virtual time: every figure is the script's, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from specflow.config.sampling import SamplingParams
from specflow.serving.load.cells import Cell
from specflow.serving.load.generator import Conditions, Endpoint, run_block, warm_up
from specflow.serving.load.protocols import Asked, Chat, Generate
from specflow.serving.load.samples import Block
from specflow.targets.retrying import ServerError
from tests.serving.virtual_time import DONE, Script, ScriptedServer, event, generate_event, run_virtually

COLD = Conditions(max_new_tokens=64, cache="cold")


def asked(count: int, **named: Any) -> tuple[Asked, ...]:
    return tuple(Asked(id=f"p{i}", kind="k", ids=(i, 7), **named) for i in range(count))


def closed(count: int, concurrency: int, **named: Any) -> Cell:
    return Cell(
        dataset="k", sampling_name="greedy", sampling=SamplingParams(), asked=asked(count), concurrency=concurrency,
        **named,
    )  # fmt: skip


def answer(tokens: int, *, first: float, every: float, per_chunk: int = 1, **meta: Any) -> Script:
    """The first token after ``first`` seconds, then ``per_chunk`` every ``every``."""
    counts = [1, *range(1 + per_chunk, tokens + 1, per_chunk)]
    chunks = [
        (first + i * every, generate_event(n, finish="length" if n == counts[-1] else None, **meta))
        for i, n in enumerate(counts)
    ]
    return Script(chunks=[*chunks, (chunks[-1][0], DONE)])


def run(server: ScriptedServer, cell: Cell, conditions: Conditions = COLD, *, dialect: Any = None) -> Block:
    endpoint = Endpoint(url="http://server", dialect=dialect or Generate(), timeout=100.0, transport=server)
    return run_virtually(run_block(endpoint, cell, conditions, mode="drafter", repeat=0))


def test_a_closed_loop_keeps_so_many_in_flight() -> None:
    # An answer takes 0.5 + 4 * 0.25 = 1.5 s; six of them, two at a time, take three rounds.
    server = ScriptedServer(lambda n, body: answer(5, first=0.5, every=0.25))
    block = run(server, closed(6, 2))
    assert server.most_in_flight == 2
    assert block.seconds == 4.5
    assert [s.sent for s in block.samples] == [0.0, 0.0, 1.5, 1.5, 3.0, 3.0]
    assert {s.first_token for s in block.samples} == {0.5}
    assert {s.per_token for s in block.samples} == {0.25}
    assert block.tokens == 30
    assert block.failures == ()


def test_256_streams_of_several_tokens_a_chunk() -> None:
    server = ScriptedServer(lambda n, body: answer(49, first=1.0, every=0.125, per_chunk=4))
    block = run(server, closed(512, 256))
    assert server.most_in_flight == 256
    assert len(block.samples) == 512
    assert {s.per_token for s in block.samples} == {0.125 / 4}
    assert block.seconds == 5.0


def test_in_an_open_loop_a_slow_server_does_not_slow_the_arrivals() -> None:
    server = ScriptedServer(lambda n, body: answer(3, first=4.0, every=1.0))
    cell = replace(closed(4, 1), concurrency=None, rate=1.0, offsets=(0.5, 1.0, 1.25, 2.0))
    block = run(server, cell)
    assert server.most_in_flight == 4
    assert [s.sent for s in block.samples] == [0.5, 1.0, 1.25, 2.0]
    assert {s.seconds for s in block.samples} == {6.0}


def test_the_chat_protocol_with_reasoning_and_several_tokens_a_chunk() -> None:
    def script(n: int, body: dict[str, Any]) -> Script:
        def chunk(delta: dict[str, Any], tokens: int, finish: str | None = None) -> bytes:
            usage = {"completion_tokens": tokens, "prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 0}}
            return event({"choices": [{"delta": delta, "finish_reason": finish}], "usage": usage})

        return Script(
            chunks=[
                (0.25, chunk({"role": "assistant", "content": ""}, 0)),
                (1.0, chunk({"reasoning_content": "so"}, 1)),
                (1.5, chunk({"reasoning_content": "it is"}, 3)),
                (2.0, chunk({"content": ""}, 3)),
                (3.0, chunk({"content": "four"}, 7, "stop")),
                (3.25, event({"choices": [], "usage": {"completion_tokens": 7, "reasoning_tokens": 3}})),
                (3.25, DONE),
            ]
        )

    server = ScriptedServer(script)
    cell = replace(closed(1, 1), asked=(Asked(id="a", kind="k", messages=({"role": "user", "content": "2+2"},)),))
    block = run(server, cell, dialect=Chat(model="m"))
    (sample,) = block.samples
    assert (sample.first_token, sample.seconds, sample.decode_seconds) == (1.0, 3.0, 2.0)
    assert sample.per_token == 2.0 / 6
    assert sample.between_tokens == [(0.25, 2), (0.375, 4)]
    assert sample.counters.reasoning_tokens == 3
    body = server.bodies[0]
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert "ignore_eos" not in body
    assert body["messages"][0]["content"].endswith("]\n2+2")  # cold: a line of its own before every prompt


def test_a_dropped_connection_is_a_failure_and_no_data_point() -> None:
    def script(n: int, body: dict[str, Any]) -> Script:
        if n == 1:
            return Script(chunks=[(1.0, generate_event(1)), (2.0, httpx.ReadError("reset"))])
        if n == 2:
            return Script(chunks=[(1.0, generate_event(1))])  # ends in good order, and too early
        return answer(5, first=0.5, every=0.25)

    block = run(ScriptedServer(script), closed(5, 1))
    assert [(f.number, f.reason) for f in block.failures] == [(1, "broken_off"), (2, "broken_off")]
    assert [s.number for s in block.samples] == [0, 3, 4]
    assert {s.per_token for s in block.samples} == {0.25}
    assert block.failed_share == 0.4
    assert block.tokens == 15


def test_what_a_server_refuses_or_never_ends_is_a_failure() -> None:
    def script(n: int, body: dict[str, Any]) -> Script:
        if n == 0:
            return Script(chunks=[(0.0, b'{"error": "too long"}')], status=400)
        if n == 1:
            return Script(chunks=[(1.0, generate_event(1)), (1e6, DONE)])
        return Script(chunks=[(0.5, b"data: {broken\n\n")])

    block = run(ScriptedServer(script), closed(3, 3))
    assert [f.reason for f in block.failures] == ["http_400", "timeout", "not_the_protocol"]
    assert block.failures[0].detail == 'HTTP 400 {"error": "too long"}'
    assert block.failures[1].at == 100.0


def test_a_server_that_dies_in_the_middle_ends_the_block() -> None:
    server = ScriptedServer(lambda n, body: answer(5, first=0.5, every=0.25), dies_at=2.0)
    with pytest.raises(ServerError, match=r"does not answer any more; request \d: ReadError"):
        run(server, closed(8, 2))
    assert len(server.bodies) == 4  # nothing was asked after it


def test_a_server_that_lives_and_takes_no_connection_is_not_dead() -> None:
    refused = Script(refuse=True)
    server = ScriptedServer(lambda n, body: refused if n == 0 else answer(5, first=0.5, every=0.25))
    block = run(server, closed(3, 1))
    assert [f.reason for f in block.failures] == ["no_connection"]
    assert len(block.samples) == 2


def test_cold_warm_and_shared() -> None:
    def script(n: int, body: dict[str, Any]) -> Script:
        return answer(min(3, body["sampling_params"]["max_new_tokens"]), first=0.5, every=0.25)

    keys = {}
    for cache in ("cold", "shared", "warm"):
        server = ScriptedServer(script)
        block = run(server, closed(3, 2), Conditions(max_new_tokens=8, cache=cache))
        assert server.paths[0].startswith("/flush_cache")
        assert len(block.samples) == 3
        keys[cache] = [body.get("extra_key") for body in server.bodies]
        if cache == "warm":
            assert [b["sampling_params"]["max_new_tokens"] for b in server.bodies] == [1, 1, 1, 8, 8, 8]
    assert len({*keys["cold"]}) == 3
    assert set(keys["shared"]) == set(keys["warm"]) == {None}


def test_sampling_and_end_tokens_are_asked_for() -> None:
    server = ScriptedServer(lambda n, body: answer(3, first=0.5, every=0.25))
    sampling = SamplingParams(temperature=0.7, top_p=0.9, top_k=20)
    run(server, replace(closed(1, 1), sampling=sampling), dialect=Generate(end_ids=(9, 2)))
    assert server.bodies[0]["sampling_params"] == {
        "temperature": 0.7, "max_new_tokens": 64, "top_k": 20, "top_p": 0.9, "stop_token_ids": [2, 9],
    }  # fmt: skip
    run(server, closed(1, 1))
    assert server.bodies[1]["sampling_params"] == {"temperature": 0.0, "max_new_tokens": 64}


def test_warming_up_is_not_measured_and_must_work() -> None:
    server = ScriptedServer(lambda n, body: answer(3, first=0.5, every=0.25) if n < 2 else Script(status=500))
    endpoint = Endpoint(url="http://server", dialect=Generate(), timeout=9.0, transport=server)
    conditions = Conditions(max_new_tokens=8, cache="cold", warmup_requests=2)
    run_virtually(warm_up(endpoint, closed(5, 2), conditions))
    assert len(server.bodies) == 2
    with pytest.raises(ServerError, match="before the measurement failed: http_500"):
        run_virtually(warm_up(endpoint, closed(5, 2), conditions))
