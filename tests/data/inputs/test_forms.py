"""Adapters: what rows of each form become, and how a form is told from its keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specflow.config.inputs import InputParams, PromptSource
from specflow.data.inputs.forms import adapter, detect, form_names
from specflow.data.inputs.forms.registry import registered
from specflow.data.inputs.rows import to_row
from specflow.data.tools import Malformed
from tests.data.inputs.helpers import asked, lines, message, prepared, source, texts

MARKERS = {"user": "### Human:", "assistant": "### Assistant:", "system": "### System:", "end": "</s>"}
U = message("user", "u")


def of(form: str, **more: Any) -> PromptSource:
    return source(Path("x.jsonl"), form=form, **more)


def turns(*pairs: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"from": who, "value": value} for who, value in pairs]


CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}

GOOD: list[tuple[str, dict[str, Any], dict[str, Any], list[dict[str, Any]]]] = [
    ("messages", {}, {"messages": [U]}, [U]),
    ("messages", {}, {"messages": [U, message("assistant", "a")]}, [U]),
    ("messages", {}, {"conversations": [U]}, [U]),
    ("messages", {}, {"messages": [U], "system": "s"}, [message("system", "s"), U]),
    ("messages", {}, {"messages": [message("system", "own"), U], "system": "s"}, [message("system", "own"), U]),
    ("messages", {}, {"messages": [U], "system": ""}, [U]),
    ("messages", {"fields": {"messages": "talk"}}, {"talk": [U], "messages": 5}, [U]),
    ("sharegpt", {}, {"conversations": turns(("human", "u"))}, [U]),
    (
        "sharegpt",
        {},
        {"conversations": turns(("human", "u"), ("gpt", "a"), ("user", "v"), ("assistant", "b")), "system": "s"},
        [message("system", "s"), U, message("assistant", "a"), message("user", "v")],
    ),
    ("sharegpt", {}, {"conversations": turns(("system", "s"), ("human", "u"))}, [message("system", "s"), U]),
    (
        "sharegpt",
        {},
        {
            "conversations": turns(
                ("human", "u"),
                ("function_call", '{"name": "f", "arguments": {"x": 1}}'),
                ("observation", "t"),
                ("gpt", "a"),
            )
        },
        [U, {"role": "assistant", "content": "", "tool_calls": [CALL]}, message("tool", "t")],
    ),
    (
        "sharegpt",
        {},
        {
            "conversations": turns(
                ("human", "u"), ("function_call", [{"name": "f", "arguments": {"x": 1}}]), ("tool", "t")
            )
        },
        [U, {"role": "assistant", "content": "", "tool_calls": [CALL]}, message("tool", "t")],
    ),
    ("pairs", {}, {"prompt": "u", "response": "a"}, [U]),
    ("pairs", {}, {"prompt": "u"}, [U]),
    ("pairs", {}, {"instruction": "do", "input": "this", "output": "a"}, [message("user", "do\n\nthis")]),
    ("pairs", {}, {"instruction": "u", "input": " ", "output": "a"}, [U]),
    ("pairs", {}, {"question": "u", "answer": "a", "system_prompt": "s"}, [message("system", "s"), U]),
    ("pairs", {}, {"prompt": [U], "completion": [message("assistant", "a")]}, [U]),
    (
        "pairs",
        {"fields": {"prompt": "q", "system": "role"}},
        {"q": "u", "prompt": "no", "role": "s"},
        [message("system", "s"), U],
    ),
    ("text", {"markers": MARKERS}, {"text": "### Human: u\n### Assistant: a</s>"}, [U]),
    ("text", {"markers": MARKERS}, {"text": "### Human: u\n### Assistant:"}, [U]),
    (
        "text",
        {"markers": MARKERS, "fields": {"text": "t"}},
        {"t": "### System: s </s>\n### Human:\nu\n\n2 # 3 ### 4</s>### Assistant: a</s> ### Human: v"},
        [message("system", "s"), message("user", "u\n\n2 # 3 ### 4"), message("assistant", "a"), message("user", "v")],
    ),
    (
        "text",
        {"markers": {"user": "U", "assistant": "UA"}},
        {"text": "U x UA y U z"},
        [message("user", "x"), message("assistant", "y"), message("user", "z")],
    ),
]


@pytest.mark.parametrize(("form", "options", "row", "expected"), GOOD)
def test_rows_become_messages(form: str, options: Any, row: Any, expected: Any) -> None:
    made = to_row(row, form=form, source=of(form, **options), params=InputParams())
    assert made.messages == expected


@pytest.mark.parametrize(("form", "options", "row", "expected"), GOOD)
def test_the_form_is_told_by_the_keys(form: str, options: Any, row: Any, expected: Any) -> None:
    declared = {key: value for key, value in options.items() if key != "fields" or form == "text"}
    if form == "messages" and "fields" in options:
        declared = options
    if form == "pairs" and "fields" in options:
        declared = options
    assert detect([None, [], {}, row], of("auto", **declared)) == form


@pytest.mark.parametrize("key", ["instruction", "question", "query", "prompt"])
def test_conversations_with_a_column_of_a_pair_are_conversations(key: str) -> None:
    row = {key: "the first question", "conversations": turns(("human", "u"), ("gpt", "a"))}
    assert detect([row], of("auto")) == "sharegpt"
    assert detect([{key: " "}, {"conversations": turns(("human", "u"))}], of("auto")) == "sharegpt"
    assert [detect([{key: value}], of("auto")) for value in (" ", "", [], 5, {}, None)] == [None] * 6


@pytest.mark.parametrize(
    ("form", "options", "row", "reason"),
    [
        ("messages", {}, {"prompt": "hi"}, "no_messages"),
        ("messages", {}, {}, "no_messages"),
        ("messages", {}, [], "not_an_object"),
        ("messages", {}, "text", "not_an_object"),
        ("messages", {}, {"messages": turns(("human", "u"))}, "unknown_role"),
        ("sharegpt", {}, {"messages": [U]}, "unknown_role"),
        ("sharegpt", {}, {"prompt": "u"}, "no_messages"),
        ("sharegpt", {}, {"conversations": []}, "empty_messages"),
        ("sharegpt", {}, {"conversations": "u"}, "messages_not_a_list"),
        ("sharegpt", {}, {"conversations": ["u"]}, "message_not_an_object"),
        ("sharegpt", {}, {"conversations": turns(("alien", "u"))}, "unknown_role"),
        ("sharegpt", {}, {"conversations": turns(("human", None))}, "content_not_a_string"),
        ("sharegpt", {}, {"conversations": turns(("gpt", "a"), ("human", "u"))}, "assistant_first"),
        (
            "sharegpt",
            {},
            {"conversations": turns(("human", "u"), ("function_call", "{oops"), ("tool", "t"))},
            "tool_calls_not_a_list",
        ),
        ("pairs", {}, {"messages": [U]}, "no_prompt"),
        ("pairs", {"fields": {"prompt": "q"}}, {"prompt": "u"}, "no_prompt"),
        ("pairs", {}, {"prompt": 5}, "content_not_a_string"),
        ("pairs", {}, {"prompt": ""}, "empty_content"),
        ("text", {"markers": MARKERS}, {"text": 5}, "no_text"),
        ("text", {"markers": MARKERS}, {"prompt": "u"}, "no_text"),
        ("text", {"markers": MARKERS}, {"text": "no marker"}, "text_before_marker"),
        ("text", {"markers": MARKERS}, {"text": "x ### Human: u"}, "text_before_marker"),
        ("text", {"markers": MARKERS}, {"text": ""}, "empty_messages"),
        ("text", {"markers": MARKERS}, {"text": "### Human: ### Human: u"}, "empty_content"),
        ("text", {"markers": MARKERS}, {"text": "### Assistant: a ### Human: u"}, "assistant_first"),
    ],
)
def test_bad_rows_have_a_reason(form: str, options: Any, row: Any, reason: str) -> None:
    with pytest.raises(Malformed) as error:
        to_row(row, form=form, source=of(form, **options), params=InputParams())
    assert error.value.reason == reason


def test_a_declared_form_wins_over_the_keys(tmp_path: Path) -> None:
    row = {"prompt": "from the pair", "messages": [message("user", "from the messages")]}
    path = lines(tmp_path / "p.jsonl", [row])
    assert texts(prepared(tmp_path, [source(path)])) == ["from the messages"]
    assert texts(prepared(tmp_path, [source(path, form="pairs")])) == ["from the pair"]


def test_the_choice_is_logged_and_counted(tmp_path: Path) -> None:
    from specflow.data.inputs.prepare import prepare

    path = lines(tmp_path / "p.jsonl", [{"instruction": "u"}])
    said: list[str] = []
    made = prepare([source(path)], [], InputParams(workers=1), folder=tmp_path / "inputs", log=said.append)
    assert said == ["p.jsonl: rows of the form pairs, by their keys"]
    assert made.counts[0].form == "pairs"


def test_text_needs_markers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="turns of a text"):
        source(tmp_path / "p.jsonl", form="text")


def test_thinking_is_the_rows_own_or_the_sources(tmp_path: Path) -> None:
    rows = [asked("a", thinking=False), asked("b"), asked("c", enable_thinking=True), asked("d", thinking="yes")]
    path = lines(tmp_path / "p.jsonl", rows)
    made = prepared(tmp_path, [source(path, thinking=True)])
    assert [prompt.thinking for prompt in made.rows()] == [False, True, True, True]
    made = prepared(tmp_path, [source(path)])
    assert [prompt.thinking for prompt in made.rows()] == [False, None, True, None]


def test_tools_travel_with_the_row(tmp_path: Path) -> None:
    path = lines(tmp_path / "p.jsonl", [asked("a", tools='[{"name": "f"}]'), asked("b", tools=[]), asked("c", tools=5)])
    made = prepared(tmp_path, [source(path)])
    assert [prompt.tools for prompt in made.rows()] == [[{"type": "function", "function": {"name": "f"}}], None]
    assert made.summary()["set_aside"] == {"tools_not_a_list": 1}


def test_every_declared_form_has_an_adapter() -> None:
    assert form_names() == ["messages", "sharegpt", "pairs", "text"]
    with pytest.raises(ValueError, match="unknown form 'csv'; known: messages"):
        adapter("csv")
    with pytest.raises(ValueError, match="two adapters"):
        registered("text")(type(adapter("text")))
