"""A chat template as text: messages, tools and thinking mode in, exactly what serving renders out.

The template is the one that transformers compiles. Two things differ from ``apply_chat_template``: the
messages of a conversation are prepared once for its many renderings, and a template that asks for the
date gets :data:`DATE`, so that the same rows give the same ids on any day.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from jinja2 import TemplateError

Message = Mapping[str, Any]
DATE = datetime(2025, 1, 1)
SWITCHES = ("enable_thinking", "thinking")
"""Names under which templates know the thinking mode. A template ignores what it does not know."""
REASONING = ("reasoning_content", "thinking", "reasoning")


class TemplateRefused(TemplateError):
    """The template raised on messages it does not support."""


class ChatTemplate:
    """The template of a tokenizer. Renders text; knows nothing of tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._render: dict[bool, Callable[..., str]] = {}
        self._special = {k: v for k, v in tokenizer.special_tokens_map.items() if isinstance(v, str)}

    def render(
        self,
        messages: Sequence[Message],
        *,
        answer: bool = False,
        tools: Sequence[Any] | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Text of messages that :func:`prepared` gave. Raises :class:`TemplateRefused`."""
        values = {**self._special, "strftime_now": DATE.strftime, **(arguments or {})}
        render = self._compiled(bool(tools))
        try:
            return render(
                messages=messages,
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=answer,
                **values,
            )
        except TemplateRefused:
            raise
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise TemplateRefused(str(error) or type(error).__name__) from error

    def thinking_switch(self) -> str | None:
        """The name by which the template is told of the thinking mode; found by rendering both ways."""
        probe = prepared([{"role": "user", "content": "x"}])
        for name in SWITCHES:
            try:
                on, off = (self.render(probe, answer=True, arguments={name: mode}) for mode in (True, False))
            except TemplateRefused:
                continue
            if on != off:
                return name
        return None

    def _compiled(self, with_tools: bool) -> Callable[..., str]:
        """A tokenizer may have a second template for conversations with tools."""
        if with_tools not in self._render:
            source = self._tokenizer.get_chat_template(tools=[{}] if with_tools else None)
            self._render[with_tools] = _compiled(source) or partial(self._slowly, source)
        return self._render[with_tools]

    def _slowly(self, source: str, *, documents: None, strftime_now: Any, **values: Any) -> str:
        """By the public function, which prepares all messages again, and knows today's date only."""
        messages = values.pop("messages")
        return str(self._tokenizer.apply_chat_template(messages, chat_template=source, tokenize=False, **values))


def _compiled(source: str) -> Callable[..., str] | None:
    """The template as transformers compiles it, if this version has the function under the name we know."""
    from transformers.utils import chat_template_utils

    compile_template = getattr(chat_template_utils, "_compile_jinja_template", None)
    return compile_template(source).render if compile_template else None


def arguments_of(thinking: bool | None, further: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Arguments of the template for a thinking mode; what ``further`` names goes before."""
    return ({} if thinking is None else dict.fromkeys(SWITCHES, thinking)) | dict(further or {})


def prepared(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as serving hands them to a template.

    Keys without a value are left out; content is text; reasoning is there under every name that templates
    read; arguments of tool calls are objects, not JSON text.
    """
    return [_prepared(message) for message in messages]


def _prepared(message: Message) -> dict[str, Any]:
    made = {key: value for key, value in message.items() if value is not None}
    made.setdefault("content", "")
    reasoning = next((made[key] for key in REASONING if made.get(key)), None)
    if reasoning is not None:
        made = {**made, "thinking": reasoning, "reasoning_content": reasoning}
    if "tool_calls" in made:
        made["tool_calls"] = [_call(call) for call in made["tool_calls"]]
    return made


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}}}
