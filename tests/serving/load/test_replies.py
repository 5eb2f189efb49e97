"""What came when, and how many tokens it was: by the server's counts, for either protocol."""

from __future__ import annotations

from typing import Any

import pytest

from specflow.serving.load.replies import BadReply, ChatReply, GenerateReply
from specflow.serving.load.samples import Arrival, Counters, Sample


def chat(delta: dict[str, Any], *, tokens: int | None = None, finish: str | None = None, **top: Any) -> dict[str, Any]:
    usage = {} if tokens is None else {"usage": {"completion_tokens": tokens, "prompt_tokens": 5}}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **usage, **top}


def usage(tokens: int, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"completion_tokens": tokens, "prompt_tokens": 5, **more}}


def meta(tokens: int, **more: Any) -> dict[str, Any]:
    return {"text": "", "meta_info": {"completion_tokens": tokens, "finish_reason": None, **more}}


def sample_of(reply: Any) -> Sample:
    finish, finished, counters = reply.finish()
    return Sample(
        number=0, id="a", kind="k", due=0.0, sent=0.0, arrivals=reply.arrived(), finished=finished, finish=finish,
        counters=counters,
    )  # fmt: skip


def test_three_tokens_a_chunk_are_three_tokens() -> None:
    reply = GenerateReply()
    for at, tokens, finish in ((1.0, 3, None), (1.25, 6, None), (1.5, 9, {"type": "length"})):
        reply.take(meta(tokens, finish_reason=finish), at)
    sample = sample_of(reply)
    # Six tokens in half a second; the chunks are a quarter of a second apart.
    assert sample.per_token == 0.5 / 6
    assert sample.between_tokens == [(0.25 / 3, 3), (0.25 / 3, 3)]
    assert (sample.first_token, sample.seconds, sample.finish) == (1.0, 1.5, "length")


def test_the_role_and_an_empty_delta_are_nothing_that_a_user_sees() -> None:
    reply = ChatReply()
    reply.take(chat({"role": "assistant", "content": ""}), 0.1)
    reply.take(chat({"content": ""}), 0.2)
    reply.take(chat({"content": "a"}), 1.0)
    reply.take(chat({"content": None}, finish="stop"), 3.0)
    reply.take(usage(5), 3.5)
    sample = sample_of(reply)
    assert sample.arrivals == (Arrival(1.0, None),)
    assert (sample.first_token, sample.seconds) == (1.0, 3.0)
    assert sample.per_token == 0.0
    assert sample.between_tokens == []


def test_an_empty_delta_by_which_the_count_grows_holds_tokens() -> None:
    """Bytes of a character that is not whole yet, or a tool call that the server still parses."""
    reply = ChatReply()
    for at, text, tokens in ((1.0, "a", 1), (2.0, "", 2), (3.0, "", 2), (4.0, "é", 4)):
        reply.take(chat({"content": text}, tokens=tokens), at)
    reply.take(chat({}, tokens=4, finish="stop"), 4.0)
    sample = sample_of(reply)
    assert sample.arrivals == (Arrival(1.0, 1), Arrival(2.0, 2), Arrival(4.0, 4))
    assert sample.between_tokens == [(1.0, 1), (1.0, 2)]
    assert sample.per_token == 1.0


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        {"content": "a"},
    ],
)
def test_any_delta_is_the_first_token(delta: dict[str, Any]) -> None:
    reply = ChatReply()
    reply.take(chat({"role": "assistant"}), 0.5)
    reply.take(chat(delta), 1.0)
    reply.take(chat({"content": "b"}, finish="stop"), 2.0)
    reply.take(usage(2, completion_tokens_details={"reasoning_tokens": 1}), 2.0)
    sample = sample_of(reply)
    assert sample.first_token == 1.0
    assert sample.counters == Counters(tokens=2, prompt_tokens=5, reasoning_tokens=1)
    assert sample.per_token == 1.0


def test_chunks_that_are_not_counted_have_a_time_per_token_and_no_time_between() -> None:
    reply = ChatReply()
    for at in (1.0, 2.0, 3.0):
        reply.take(chat({"content": "abc"}), at)
    reply.take(chat({}, finish="stop"), 3.0)
    reply.take(usage(9), 3.0)
    sample = sample_of(reply)
    assert sample.per_token == 2.0 / 8
    assert sample.between_tokens is None


def test_events_of_one_piece_came_together() -> None:
    reply = GenerateReply()
    for at, tokens in ((1.0, 1), (2.0, 2), (2.0, 3), (2.0, 4)):
        reply.take(meta(tokens), at)
    reply.take(meta(4, finish_reason={"type": "stop"}), 2.0)
    assert sample_of(reply).between_tokens == [(1.0 / 3, 3)]


def test_counters_of_rounds() -> None:
    reply = GenerateReply()
    counts = {
        "spec_verify_ct": 4, "spec_num_correct_drafts": 5, "spec_num_proposed_drafts": 12,
        "spec_correct_drafts_histogram": [1, 1, 2], "cached_tokens": 3, "prompt_tokens": 9,
    }  # fmt: skip
    reply.take(meta(10, finish_reason={"type": "stop"}, **counts), 1.0)
    expected = Counters(tokens=10, prompt_tokens=9, cached_tokens=3, rounds=4, accepted=(1, 1, 2), proposed=12)
    assert sample_of(reply).counters == expected
    chatting = ChatReply()
    chatting.take(chat({"content": "a"}, finish="stop"), 1.0)
    chatting.take({"choices": [], "sglext": {"spec_tokens_details": counts}}, 1.0)
    chatting.take(usage(10, prompt_tokens_details={"cached_tokens": 3}), 1.0)
    found = sample_of(chatting).counters
    assert (found.tokens, found.rounds, found.accepted, found.proposed) == (10, 4, (1, 1, 2), 12)
    assert found.cached_tokens == 3


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([meta(1)], "broken_off"),
        ([], "broken_off"),
        ([meta(3), meta(2)], "contradicts_itself"),
        ([meta(1, finish_reason={"type": "abort", "message": "out of memory"})], "aborted_by_server"),
        ([{"error": {"message": "no"}}], "server_error"),
        ([{"text": "a"}], "not_the_protocol"),
        ([meta(0, finish_reason={"type": "stop"})], "empty_answer"),
        (
            [meta(4, finish_reason={"type": "stop"}, spec_verify_ct=2, spec_correct_drafts_histogram=[1, 2])],
            "contradicts_itself",
        ),
    ],
)
def test_what_is_no_data_point_for_generate(events: list[dict[str, Any]], reason: str) -> None:
    assert refusal(GenerateReply(), events) == reason


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([chat({"content": "a"}, finish="stop")], "no_token_count"),
        ([chat({"content": "a"}), usage(1)], "broken_off"),
        ([chat({"content": "a"}, tokens=5), chat({}, finish="stop"), usage(3)], "contradicts_itself"),
        (
            [
                chat({"reasoning": "a"}, finish="stop"),
                usage(3, completion_tokens_details={"reasoning_tokens": 4}),
            ],
            "contradicts_itself",
        ),
        ([chat({"content": ""}, finish="stop"), usage(1)], "empty_answer"),
    ],
)
def test_what_is_no_data_point_for_chat(events: list[dict[str, Any]], reason: str) -> None:
    assert refusal(ChatReply(), events) == reason


def refusal(reply: Any, events: list[dict[str, Any]]) -> str:
    def read() -> None:
        for number, one in enumerate(events):
            reply.take(one, float(number))
        reply.finish()

    with pytest.raises(BadReply) as caught:
        read()
    return caught.value.reason
