"""A conversation while the target answers it, turn by turn.

What the target is asked next follows from its earlier answers, never from the assistant turns of the input. A turn
that ended by length, that calls a tool, or that cannot be used is the last one: what comes after it in the
input is no reaction to it. Assistant turns of the input that call tools are kept: the results after them are theirs.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from jinja2 import TemplateError

from specflow.data.answers import Answer, Ids, packed, prompt_hash
from specflow.data.conversations import Defect
from specflow.data.prompts import Prompt
from specflow.data.thinking import mode_defect
from specflow.data.tools import Malformed, tool_calls

Render = Callable[[Sequence[Mapping[str, Any]], "Sequence[Any] | None", "bool | None"], list[int]]
"""Token ids of messages, tools and thinking mode, up to where the answer begins."""


@dataclass(slots=True)
class Dialogue:
    """One row. ``prompt_ids`` and ``messages`` are what the next answer is asked for with."""

    row: Prompt
    messages: list[dict[str, Any]]
    later: list[list[dict[str, Any]]]
    """For each further turn, the messages of the input between the answer before it and its own."""
    thinking: bool | None
    tools: list[Any] | None
    prompt_ids: Ids = field(default_factory=lambda: array("i"))
    asked: list[Ids] = field(default_factory=list)
    """The prompt of every answer."""
    answers: list[Answer] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """Of every answer, in ``messages``."""
    defect: Defect | None = None
    """Why the row cannot be used."""
    open: bool = True
    """Another answer is needed."""

    @property
    def turn(self) -> int:
        return len(self.answers)

    @property
    def prompt_sha256(self) -> str:
        return prompt_hash(self.prompt_ids)

    def seed(self, seed: int) -> int:
        """A turn's own stream of random numbers: depends on nothing but the seed, the row and the turn."""
        name = self.row.id if self.turn == 0 else f"{self.row.id}#{self.turn}"
        return int.from_bytes(sha256(f"{seed}:{name}".encode()).digest()[:7], "big")

    def refuse(self, reason: str, detail: str) -> None:
        """Give the row up."""
        self.defect, self.open = Defect(reason, detail), False

    def prepare(self, render: Render, *, room: int | None) -> None:
        """Render the next prompt; one that the template refuses, or above ``room`` tokens, gives the row up."""
        try:
            self.prompt_ids = array("i", render(self.messages, self.tools, self.thinking))
        except TemplateError as error:  # for example: no system turns, or turns must alternate
            self.refuse("template_refused", str(error))
            return
        if room is not None and len(self.prompt_ids) > room:
            self.refuse(
                "prompt_too_long", f"turn {self.turn} has {len(self.prompt_ids)} tokens, there is room for {room}"
            )

    def accept(self, answer: Answer, *, ends: frozenset[int]) -> None:
        """Take an answer in; afterwards the row is done, given up, or to be prepared for its next turn."""
        self.asked.append(packed(answer.prompt_ids) or self.prompt_ids)
        self.answers.append(replace(answer, prompt_ids=None, tokens=packed(answer.tokens)))
        self.places.append(len(self.messages))
        self.messages = [*self.messages, answer.message()]
        self.defect = (
            _no_text(answer)
            or _empty(answer, ends)
            or mode_defect(answer.text, reasoning=answer.reasoning, declared=self.thinking, finish=answer.finish)
        )
        if self.defect is None:
            self.defect = _ending(answer, ends)
        if self.defect or answer.finish != "stop" or answer.tool_calls or not self.later:
            self.open = False
        else:
            self.messages += self.later.pop(0)


def open_dialogue(row: Prompt, *, every_turn: bool, thinking: bool | None = None) -> Dialogue:
    """The state before the first answer. Assistant turns at the end of the input are what is asked for."""
    script = list(row.messages)  # the turns themselves are shared with the row, and never changed
    while script and script[-1]["role"] == "assistant":
        script.pop()
    places = [i for i, m in enumerate(script) if every_turn and m["role"] == "assistant" and not m.get("tool_calls")]
    pieces = [script[a + 1 : b] for a, b in zip([-1, *places], [*places, len(script)], strict=True)]
    declared = row.thinking
    return Dialogue(
        row=row,
        messages=pieces[0],
        later=pieces[1:],
        thinking=thinking if declared is None else declared,
        tools=row.tools,
    )


def _no_text(answer: Answer) -> Defect | None:
    """Half of a surrogate pair, in the answer or in the arguments of its calls, could not be written down."""
    calls: Any = answer.tool_calls
    with suppress(Malformed):  # judged by tokenising
        calls = tool_calls(calls, "the answer")
    try:
        json.dumps([answer.message(), calls], ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return Defect("not_unicode", f"{error.reason}: {error.object[error.start]!a}")
    return None


def _empty(answer: Answer, ends: frozenset[int]) -> Defect | None:
    if answer.tokens is None:
        empty = not (answer.text.strip() or answer.reasoning or answer.tool_calls)
    else:
        empty = all(token in ends for token in answer.tokens)
    return Defect("empty_answer", "the target ended at once") if empty else None


def _ending(answer: Answer, ends: frozenset[int]) -> Defect | None:
    if answer.finish not in ("stop", "length", "tool_calls"):
        return Defect("unusable_finish", answer.finish.encode("utf-8", "backslashreplace").decode())
    if answer.finish == "stop" and answer.tokens and answer.tokens[-1] not in ends:
        shown = f"the last id is {answer.tokens[-1]}, end tokens are {sorted(ends)}"
        return Defect("no_end_token", f"{shown}; if no answer has one, set server.token_ids to false")
    return None
