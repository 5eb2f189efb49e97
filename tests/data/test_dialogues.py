"""Dialogues: what is asked, on top of what, when a conversation ends, and that the journal brings each one back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateError

from specflow.data.answers import Answer, AnswerLog, read_answers
from specflow.data.dialogues import Dialogue, open_dialogue
from specflow.data.prompts import Prompt
from specflow.data.regenerated import Session, conversation, cut_short, set_aside
from specflow.data.template import arguments_of
from specflow.data.thinking import THINK_TAG, mode_defect

END = 99
ENDS = frozenset({END})


def say(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def prompt(messages: Sequence[Any], name: str = "p") -> Prompt:
    return Prompt(id=name, split="train", kind="k", messages=list(messages), source="file", row=1)


def render(messages: Sequence[Any], tools: Any, thinking: Any) -> list[int]:
    """One id per message, and one that depends on all of them."""
    if any(m["content"] == "refuse" for m in messages):
        raise TemplateError("no such turn")
    return [len(m["content"]) for m in messages] + [sum(map(ord, "".join(m["content"] for m in messages)))]


def answer(dialogue: Dialogue, text: str | None = None, **more: Any) -> Answer:
    text = f"re {dialogue.messages[-1]['content']}" if text is None else text
    values = {"finish": "stop", "tokens": [len(text), END], "token_count": 2, **more}
    return Answer(id=dialogue.row.id, turn=dialogue.turn, prompt_sha256=dialogue.prompt_sha256, text=text, **values)


def play(dialogue: Dialogue) -> list[list[dict[str, Any]]]:
    """Answer every turn; returns the messages that each answer was asked for with."""
    asked = []
    dialogue.prepare(render, room=None)
    while dialogue.open:
        asked.append([dict(m) for m in dialogue.messages])
        dialogue.accept(answer(dialogue), ends=ENDS)
        if dialogue.open:
            dialogue.prepare(render, room=None)
    return asked


TALK = [{"role": "system", "content": "s"}, user("a"), say("old"), user("b"), say("old"), user("c")]


def test_all_turns_are_asked_in_order_with_the_new_answers_as_context() -> None:
    dialogue = open_dialogue(prompt(TALK), every_turn=True)
    assert play(dialogue) == [
        TALK[:2],
        [*TALK[:2], say("re a"), user("b")],
        [*TALK[:2], say("re a"), user("b"), say("re b"), user("c")],
    ]
    assert dialogue.messages == [*TALK[:2], say("re a"), user("b"), say("re b"), user("c"), say("re c")]


def test_the_last_turn_alone_is_asked_on_top_of_the_input() -> None:
    dialogue = open_dialogue(prompt(TALK), every_turn=False)
    assert play(dialogue) == [TALK]
    assert dialogue.messages == [*TALK, say("re c")]
    row = conversation(dialogue, greedy=True, every_turn=False, further={})
    assert row["answered"] == [len(TALK)]  # the other turns of the assistant are the input's


@pytest.mark.parametrize("every_turn", [False, True])
def test_a_conversation_that_has_its_last_answer_gets_another(every_turn: bool) -> None:
    dialogue = open_dialogue(prompt([user("a"), say("old")]), every_turn=every_turn)
    assert play(dialogue) == [[user("a")]]
    assert dialogue.messages == [user("a"), say("re a")]


def test_turns_that_call_tools_stay_because_the_results_are_theirs() -> None:
    call = say("", tool_calls=[{"function": {"name": "f", "arguments": {}}}])
    result = {"role": "tool", "content": "42"}
    dialogue = open_dialogue(prompt([user("a"), call, result, say("old"), user("b")]), every_turn=True)
    assert play(dialogue) == [
        [user("a"), call, result],
        [user("a"), call, result, say("re 42"), user("b")],
    ]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ({"finish": "length", "tokens": [1, 2]}, None),
        ({"finish": "tool_calls", "tool_calls": [{"function": {}}]}, None),
        ({"finish": "content_filter"}, "unusable_finish"),
        ({"finish": "None"}, "unusable_finish"),
        ({"tokens": [END]}, "empty_answer"),
        ({"tokens": []}, "empty_answer"),
        ({"tokens": None, "text": " \n"}, "empty_answer"),
        ({"tokens": [1, 2]}, "no_end_token"),
    ],
)
def test_such_an_answer_is_the_last_one(made: dict[str, Any], reason: str | None) -> None:
    dialogue = open_dialogue(prompt(TALK), every_turn=True)
    dialogue.prepare(render, room=None)
    dialogue.accept(answer(dialogue, **made), ends=ENDS)
    assert not dialogue.open
    assert (dialogue.defect.reason if dialogue.defect else None) == reason
    assert len(dialogue.later) == 2
    cut = ["2 tokens"] if made.get("finish") == "length" else []
    assert [q.detail for q in cut_short([dialogue], keep=False)] == cut
    assert not cut_short([dialogue], keep=True)


def test_half_an_answer_without_ids_cannot_be_kept() -> None:
    dialogue = open_dialogue(prompt([user("a")]), every_turn=False)
    dialogue.prepare(render, room=None)
    dialogue.accept(answer(dialogue, finish="length", tokens=None), ends=ENDS)
    for keep in (False, True):
        assert [q.detail for q in cut_short([dialogue], keep=keep)] == ["2 tokens, and no ids are known"]


def test_a_blank_answer_of_real_tokens_is_an_answer() -> None:
    dialogue = open_dialogue(prompt([user("a")]), every_turn=False)
    dialogue.prepare(render, room=None)
    dialogue.accept(answer(dialogue, " ", tokens=[5, END]), ends=ENDS)
    assert dialogue.defect is None


def test_prompts_that_do_not_fit_or_that_the_template_refuses_are_given_up() -> None:
    long, fits, refused = (open_dialogue(prompt(m), every_turn=True) for m in (TALK, TALK, [user("refuse")]))
    long.prepare(render, room=2)
    fits.prepare(render, room=3)
    refused.prepare(render, room=None)
    assert [d.open for d in (long, fits, refused)] == [False, True, False]
    assert [(q.reason, q.detail) for q in set_aside([long, fits, refused])] == [
        ("prompt_too_long", "turn 0 has 3 tokens, there is room for 2"),
        ("template_refused", "no such turn"),
    ]
    fits.accept(answer(fits), ends=ENDS)
    fits.prepare(render, room=4)  # a later turn can be too long, too
    assert fits.defect
    assert fits.defect.detail.startswith("turn 1 has 5")


def test_the_row_has_every_turn_with_its_own_ids() -> None:
    dialogue = open_dialogue(prompt(TALK), every_turn=True, thinking=False)
    play(dialogue)
    row = conversation(dialogue, greedy=True, every_turn=True, further={})
    pairs = [
        (render(dialogue.messages[:n], None, None), [len(text), END])
        for n, text in ((2, "re a"), (4, "re b"), (6, "re c"))
    ]
    assert row["turns"] == [{"prompt_ids": p, "answer_ids": a, "finish": "stop"} for p, a in pairs]
    assert (row["prompt_ids"], row["answer_ids"]) == pairs[-1]
    assert (row["tools"], row["thinking"], row["finish"]) == (None, False, "stop")
    assert row["answered"] == [2, 4, 6]
    assert "turns" not in conversation(dialogue, greedy=True, every_turn=False, further={})


def test_turns_of_a_row_have_streams_of_their_own() -> None:
    one, two = (open_dialogue(prompt(TALK, name), every_turn=True) for name in ("one", "two"))
    seeds = set()
    for dialogue in (one, two):
        dialogue.prepare(render, room=None)
        while dialogue.open:
            seeds |= {dialogue.seed(0), dialogue.seed(1)}
            dialogue.accept(answer(dialogue), ends=ENDS)
            dialogue.prepare(render, room=None)
    assert len(seeds) == 12


@given(
    talks=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    order=st.lists(st.integers(0, 4), max_size=12),
    cut=st.integers(0, 400),
)
def test_the_journal_brings_every_dialogue_to_where_it_was(
    tmp_path_factory: pytest.TempPathFactory, talks: list[int], order: list[int], cut: int
) -> None:
    path = tmp_path_factory.mktemp("journal") / "answers.jsonl"

    def session(log: AnswerLog) -> Session:
        scripts = [[m for n in range(turns) for m in (user(f"{i}{n}"), say("old"))] for i, turns in enumerate(talks)]
        dialogues = [open_dialogue(prompt(s, f"r{i}"), every_turn=True) for i, s in enumerate(scripts)]
        return Session(dialogues=dialogues, log=log, render=render, ends=ENDS, room=None)

    def state(made: Session) -> list[Any]:
        return [(d.open, d.turn, d.messages, d.prompt_ids) for d in made.dialogues]

    with AnswerLog(path) as log:
        first = session(log)
        assert first.begin({}) == 0
        states = [state(first)]
        for position in order:
            dialogue = first.dialogues[position % len(talks)]
            if dialogue.open:
                first.answered(dialogue, answer(dialogue))
                states.append(state(first))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - min(cut, len(data))])  # a kill may tear the end off
    whole = path.read_bytes().count(b"\n")
    known = read_answers(path)
    with AnswerLog(path) as log:
        again = session(log)
        assert again.begin(known) == whole
        assert state(again) == states[whole]
        while waiting := again.waiting():
            again.answered(waiting[0], answer(waiting[0]))
    assert [d.turn for d in again.dialogues] == talks
    assert path.read_bytes().count(b"\n") == sum(talks)


def test_answers_to_another_prompt_are_not_taken(tmp_path: Path) -> None:
    with AnswerLog(tmp_path / "answers.jsonl") as log:
        dialogue = open_dialogue(prompt([user("a")]), every_turn=False)
        session = Session(dialogues=[dialogue], log=log, render=render, ends=ENDS, room=None)
        dialogue.prepare(render, room=None)
        old = answer(dialogue)
        assert session.begin({("p", 0): old}) == 1
        changed = open_dialogue(prompt([user("b")]), every_turn=False)
        session = Session(dialogues=[changed], log=log, render=render, ends=ENDS, room=None)
        assert session.begin({("p", 0): old}) == 0
        assert changed.open


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<think>", True), ("a</think>b", True), ("< Thinking >", True), ("[THINK]x", True), ("[/THINK]", True),
        ("<|channel|>analysis<|message|>x", True), ("<seed:think>", True), ("<|begin_of_thought|>", True),
        ("I think > x", False), ("<thinker>", False), ("<|channel|>final", False), ("think]", False), ("", False),
    ],
)  # fmt: skip
def test_think_tags(text: str, found: bool) -> None:
    assert bool(THINK_TAG.search(text)) == found


@pytest.mark.parametrize(
    ("text", "reasoning", "finish", "declared", "reason"),
    [
        ("yes", None, "stop", None, None),
        ("<think>hm</think>yes", None, "stop", None, None),
        ("yes", None, "stop", False, None),
        ("<think>\n\n</think>yes", None, "stop", False, "thinking_not_declared"),
        ("yes", "hm", "stop", False, "thinking_not_declared"),
        ("hm</think>yes", None, "stop", True, None),  # the template had opened the thought
        ("yes", "hm", "stop", True, None),
        ("yes", None, "stop", True, "thinking_missing"),
        ("hm, hm", None, "length", True, None),  # cut off inside it
    ],
)
def test_modes(text: str, reasoning: str | None, finish: str, declared: bool | None, reason: str | None) -> None:
    found = mode_defect(text, reasoning=reasoning, declared=declared, finish=finish)
    assert (found.reason if found else None) == reason


def test_template_arguments() -> None:
    assert arguments_of(None, {"effort": "low"}) == {"effort": "low"}
    assert arguments_of(True, {}) == {"enable_thinking": True, "thinking": True}
    assert arguments_of(False, {"thinking": "x"}) == {"enable_thinking": False, "thinking": "x"}
