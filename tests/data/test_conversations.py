"""What a usable list of messages is: every bad kind with its reason, and what good ones become."""

from __future__ import annotations

from typing import Any

import pytest

from specflow.data.conversations import Defect, clean, defect, usable
from specflow.data.tools import Malformed, as_sent, tools


def message(role: Any, content: Any = None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(arguments: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "arguments": {} if arguments is None else arguments}, **more}


U, A, S, D = message("user", "u"), message("assistant", "a"), message("system", "s"), message("developer", "d")
T = message("tool", "t")
C = message("assistant", None, tool_calls=[call()])
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}

BAD = [
    (None, "messages_not_a_list"),
    ("hi", "messages_not_a_list"),
    ({}, "messages_not_a_list"),
    ([], "empty_messages"),
    (["hi"], "message_not_an_object"),
    ([S], "no_user_turn"),
    ([S, D], "no_user_turn"),
    ([A], "no_user_turn"),
    ([C], "no_user_turn"),
    ([S, C, T], "no_user_turn"),
    ([A, U], "assistant_first"),
    ([S, A, U], "assistant_first"),
    ([T, U], "tool_first"),
    ([U, U], "user_after_user"),
    ([U, A, A, U], "assistant_after_assistant"),
    ([U, C, A, U], "assistant_after_assistant"),
    ([U, S], "system_not_first"),
    ([S, S, U], "system_not_first"),
    ([U, A, D, U], "system_not_first"),
    ([U, A, T, U], "tool_without_call"),
    ([U, T], "tool_without_call"),
    ([U, C, U], "tool_call_unanswered"),
    ([U, C, T, U], "user_after_tool"),
    ([U, A], "assistant_last"),
    ([U, C], "assistant_last"),
    ([message("wizard", "x")], "unknown_role"),
    ([message(None, "x")], "unknown_role"),
    ([message(["user"], "x")], "unknown_role"),
    ([message("user", None)], "content_not_a_string"),
    ([message("user", 5)], "content_not_a_string"),
    ([message("user", {"text": "x"})], "content_not_a_string"),
    ([message("user", [IMAGE])], "content_not_text"),
    ([message("user", [{"type": "text", "text": "x"}, IMAGE])], "content_not_text"),
    ([message("user", [{"type": "text", "text": 5}])], "content_not_text"),
    ([message("user", [5])], "content_not_text"),
    ([message("user", "")], "empty_content"),
    ([message("user", " \n")], "empty_content"),
    ([message("user", [])], "empty_content"),
    ([U, message("assistant", ""), U], "empty_content"),
    ([U, message("assistant", None, tool_calls=[]), U], "content_not_a_string"),
    ([U, message("assistant", None, tool_calls=[{}]), T], "tool_call_malformed"),
    ([U, message("assistant", None, tool_calls=["f"]), T], "tool_call_malformed"),
    ([U, message("assistant", None, tool_calls={"name": "f"}), T], "tool_calls_not_a_list"),
    ([U, message("assistant", None, tool_calls="{oops"), T], "tool_calls_not_a_list"),
    ([U, message("assistant", None, tool_calls=[call("{oops")]), T], "tool_arguments_not_an_object"),
    ([U, message("assistant", None, tool_calls=[call("[1]")]), T], "tool_arguments_not_an_object"),
    ([message("user", "u", tool_calls=[call()])], "tool_calls_of_another_role"),
    ([U, message("assistant", "a", reasoning_content=5), U], "reasoning_not_a_string"),
    ([U, message("assistant", None, tool_calls=[call(id="1")]), {**T, "tool_call_id": "2"}], "unknown_tool_call_id"),
]


@pytest.mark.parametrize(("messages", "reason"), BAD)
def test_bad_prompts_have_a_reason(messages: Any, reason: str) -> None:
    found = usable(messages, last="user")
    assert isinstance(found, Defect)
    assert found.reason == reason
    assert defect(messages, last="user") == found


@pytest.mark.parametrize("last", ["user", "assistant"])
@pytest.mark.parametrize(
    ("messages", "ends"),
    [
        ([U], "user"),
        ([S, U], "user"),
        ([D, U], "user"),
        ([S, D, U], "user"),
        ([U, A, U], "user"),
        ([U, C, T], "user"),
        ([U, C, T, T], "user"),
        ([U, C, T, C, T], "user"),
        ([U, C, T, A, U], "user"),
        ([U, A], "assistant"),
        ([S, U, C], "assistant"),
        ([U, C, T, A], "assistant"),
    ],
)
def test_turns_in_a_usable_order(messages: list[Any], ends: str, last: str) -> None:
    found = defect(messages, last=last)
    assert found is None if ends == last else found is not None


def test_clean_messages_have_the_common_form() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"text": "c"}]
    messages = [
        {**S, "weight": 1},
        message("user", parts, name="n", tool_calls=None),
        message("assistant", None, reasoning="why", tool_calls=[{"name": "f", "arguments": '{"x": 1}', "id": 7}]),
        {**T, "tool_call_id": "7", "name": "f", "content": ""},
        message("assistant", "done", reasoning_content="so", tool_calls=[]),
        message("user", "u", reasoning_content="foreign"),
    ]
    made = usable(messages, last="user")
    assert made == clean(messages)
    assert made == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "abc"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "why",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}, "id": "7"}],
        },
        {"role": "tool", "content": "", "tool_call_id": "7", "name": "f"},
        {"role": "assistant", "content": "done", "reasoning_content": "so"},
        {"role": "user", "content": "u"},
    ]
    assert clean(made) == made  # what is clean stays as it is


@pytest.mark.parametrize("arguments", [{"x": 1}, '{"x": 1}', ' {"x":1} '])
def test_arguments_become_an_object(arguments: Any) -> None:
    assert clean([message("assistant", None, tool_calls=[call(arguments)])])[0]["tool_calls"] == [call({"x": 1})]


@pytest.mark.parametrize("arguments", [None, "", {}, "{}", "null"])
def test_no_arguments_are_an_empty_object(arguments: Any) -> None:
    calls = [{"name": "f", "arguments": arguments}]
    assert clean([message("assistant", None, tool_calls=calls)])[0]["tool_calls"] == [call({})]


F = {"name": "f", "description": "d", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ([], None),
        ("", None),
        ("[]", None),
        ([F], [{"type": "function", "function": F}]),
        ([{"type": "function", "function": F}], [{"type": "function", "function": F}]),
        ('[{"name": "g"}]', [{"type": "function", "function": {"name": "g"}}]),
        (['{"name": "g"}'], [{"type": "function", "function": {"name": "g"}}]),
    ],
)
def test_tools_have_one_form(value: Any, expected: Any) -> None:
    assert tools(value) == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"name": "f"}, "tools_not_a_list"),
        ("{oops", "tools_not_a_list"),
        ([{}], "tool_malformed"),
        ([5], "tool_malformed"),
    ],
)
def test_bad_tools_have_a_reason(value: Any, reason: str) -> None:
    with pytest.raises(Malformed) as error:
        tools(value)
    assert error.value.reason == reason


def test_servers_get_calls_in_their_own_form() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"é": [1]}}}
    messages = clean([
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "", "tool_calls": [{**call, "id": "mine"}]},
        {"role": "tool", "content": "3", "tool_call_id": "mine"},
    ])  # fmt: skip
    sent = as_sent(messages)
    function = {"name": "f", "arguments": '{"é": [1]}'}
    names = [[c["id"] for c in m["tool_calls"]] for m in sent if "tool_calls" in m]
    assert names == [["call_0", "call_1"], ["mine"]]
    assert all(c["function"] == function for m in sent for c in m.get("tool_calls", ()))
    assert [m["tool_call_id"] for m in sent if m["role"] == "tool"] == ["call_0", "call_1", "mine"]
    assert (
        clean([{k: v for k, v in m.items() if k == "role" or v} for m in sent])[1]["tool_calls"][0]["function"]
        == (call["function"])
    )
    assert messages[1]["tool_calls"][0] == call  # nothing is changed in place
