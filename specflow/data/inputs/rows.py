"""From a value of a source to a prompt in the common form, or the reason why not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from specflow.config.inputs import InputParams, PromptSource
from specflow.data.conversations import Defect, Message, usable
from specflow.data.inputs.forms import adapter
from specflow.data.tools import Malformed, tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A usable prompt, not yet named after its place."""

    id: str | None
    messages: list[Message]
    tools: list[dict[str, Any]] | None
    thinking: bool | None
    answered: bool
    """The source had an answer, which was left out."""


def to_row(value: Any, *, form: str, source: PromptSource, params: InputParams) -> Row:
    """Raises :class:`Malformed` with the reason for which the row is set aside."""
    if not isinstance(value, Mapping):
        raise Malformed("not_an_object", type(value).__name__)
    given = adapter(form).messages(value, source)
    asked = _without_answer(given)
    messages = usable(asked, last="user")
    if isinstance(messages, Defect):
        raise Malformed(messages.reason, messages.detail)
    size = sum(len(message["content"]) for message in messages)
    if size < params.min_characters:
        raise Malformed("too_few_characters", f"{size}, min_characters is {params.min_characters}")
    if params.max_characters is not None and size > params.max_characters:
        raise Malformed("too_many_characters", f"{size}, max_characters is {params.max_characters}")
    return Row(
        id=row_id(value, source),
        messages=messages,
        tools=tools(value.get(source.fields.tools or "tools")),
        thinking=_thinking(value, source),
        answered=asked is not given,
    )


def row_id(value: Any, source: PromptSource) -> str | None:
    """The row's own id, if it has one."""
    found = value.get(source.fields.id or "id") if isinstance(value, Mapping) else None
    return str(found) if isinstance(found, str | int) and not isinstance(found, bool) and found != "" else None


def content_of(row: Row) -> bytes:
    """What makes two rows equal: messages and tools, whatever the order of their keys.

    Raises :class:`Malformed` for text that has no UTF-8 form (half of a surrogate pair).
    """
    return to_json([row.messages, row.tools], sort_keys=True)


def to_json(value: Any, *, sort_keys: bool = False) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:
        pass  # whole numbers of more than 64 bits, or text that is not Unicode
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=sort_keys, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise Malformed("not_unicode", error.reason) from error
    except TypeError as error:  # columns hold dates and bytes, too
        raise Malformed("not_json", str(error)) from error


def _without_answer(messages: Any) -> Any:
    """The turns before a last turn of the assistant: the target writes its own."""
    if not isinstance(messages, list) or len(messages) < 2:
        return messages
    last, before = (m.get("role") if isinstance(m, dict) else None for m in (messages[-1], messages[-2]))
    return messages[:-1] if last == "assistant" and before != "assistant" else messages


def _thinking(value: Mapping[str, Any], source: PromptSource) -> bool | None:
    for key in ("thinking", "enable_thinking"):
        if isinstance(value.get(key), bool):
            return bool(value[key])
    return source.thinking
