"""What a usable list of messages is. Everything else gets a reason code.

A message is a dict with ``role`` (``system``, ``developer``, ``user``, ``assistant`` or ``tool``) and ``content``,
and where they apply ``reasoning_content``, ``tool_calls``, ``tool_call_id`` and ``name``. Content is text; it is
empty only where ``tool_calls`` stand or where a tool returned nothing. Arguments of a tool call are an object, as chat
templates expect them. Foreign keys are dropped, so that they cannot change what a template renders.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from specflow.data.tools import Malformed, tool_calls

Message = dict[str, Any]
HEAD = ("system", "developer")
ROLES = (*HEAD, "user", "assistant", "tool")


class Defect(NamedTuple):
    reason: str
    detail: str


def defect(messages: Any, *, last: str) -> Defect | None:
    """Why ``messages`` cannot be used, or ``None``; ``last`` as for :func:`usable`."""
    found = usable(messages, last=last)
    return found if isinstance(found, Defect) else None


def clean(messages: Any) -> list[Message]:
    """Messages that have no defect, in the form above."""
    return [_message(message, position) for position, message in enumerate(messages)]


def usable(messages: Any, *, last: str) -> list[Message] | Defect:
    """``messages`` in the form above, or why they cannot be used.

    ``last`` is ``user`` for a prompt, which ends with a turn of a user or a tool, and ``assistant`` for a
    conversation. An optional head (system, developer) is followed by a user's turn, and then by turns in which
    nobody speaks twice in a row; tools answer the calls of the assistant's turn before them.
    """
    if not isinstance(messages, list):
        return Defect("messages_not_a_list", type(messages).__name__)
    if not messages:
        return Defect("empty_messages", "")
    try:
        made = clean(messages)
    except Malformed as error:
        return Defect(error.reason, error.detail)
    return _order_defect(made, last) or made


def _message(message: Any, position: int) -> Message:
    where = f"message {position}"
    if not isinstance(message, dict):
        raise Malformed("message_not_an_object", f"{where} is {type(message).__name__}")
    role = message.get("role")
    if role not in ROLES:
        raise Malformed("unknown_role", f"{where} has role {role!r}")
    calls = tool_calls(message.get("tool_calls"), where)
    if calls and role != "assistant":
        raise Malformed("tool_calls_of_another_role", f"{where} ({role})")
    content = _text(message.get("content"), where, may_be_missing=bool(calls))
    if not content.strip() and not calls and role != "tool":
        raise Malformed("empty_content", f"{where} ({role})")
    made: Message = {"role": role, "content": content}
    if role == "assistant":
        _add_reasoning(made, message, where)
    if calls:
        made["tool_calls"] = calls
    if role == "tool":
        made |= {key: str(message[key]) for key in ("tool_call_id", "name") if message.get(key) is not None}
    return made


def _text(content: Any, where: str, *, may_be_missing: bool) -> str:
    """The content as text: parts of text are joined, anything else is a defect."""
    if isinstance(content, str):
        return content
    if content is None and may_be_missing:
        return ""
    if not isinstance(content, list):
        raise Malformed("content_not_a_string", f"{where} has {type(content).__name__}")
    parts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise Malformed("content_not_text", f"{where} has a part of type {kind}")
        parts.append(text)
    return "".join(parts)


def _add_reasoning(made: Message, message: dict[str, Any], where: str) -> None:
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if not reasoning:
        return
    if not isinstance(reasoning, str):
        raise Malformed("reasoning_not_a_string", f"{where} has {type(reasoning).__name__}")
    made["reasoning_content"] = reasoning


def _order_defect(messages: list[Message], last: str) -> Defect | None:
    roles = [message["role"] for message in messages]
    start = next((i for i, role in enumerate(roles) if role not in HEAD), len(roles))
    if len(set(roles[:start])) < start or any(role in HEAD for role in roles[start:]):
        late = next(i for i, role in enumerate(roles) if role in HEAD and (i >= start or role in roles[:i]))
        return Defect("system_not_first", f"message {late}")
    if "user" not in roles:
        return Defect("no_user_turn", "roles: " + ", ".join(roles))
    if roles[start] != "user":
        return Defect(f"{roles[start]}_first", "roles: " + ", ".join(roles))
    for position, (before, after) in enumerate(pairwise(messages[start:]), start=start):
        reason = _wrong_pair(before, after)
        if reason:
            return Defect(reason, f"messages {position} and {position + 1}")
    if (roles[-1] == "assistant") != (last == "assistant"):
        return Defect(f"{roles[-1]}_last", f"expected the last turn to be {last}'s")
    return _unknown_call(messages)


def _wrong_pair(before: Message, after: Message) -> str | None:
    """Why ``after`` cannot follow ``before``."""
    one, two = before["role"], after["role"]
    calling = one == "tool" or bool(before.get("tool_calls"))
    if two == "tool":
        return None if calling else "tool_without_call"
    if two == "user" and calling:
        return "user_after_tool" if one == "tool" else "tool_call_unanswered"
    return f"{two}_after_{one}" if one == two else None


def _unknown_call(messages: list[Message]) -> Defect | None:
    """A tool's answer to a call that the turn before it did not make."""
    known: set[str] = set()
    for position, message in enumerate(messages):
        if message["role"] == "assistant":
            known = {call["id"] for call in message.get("tool_calls", ()) if "id" in call}
        elif known and message.get("tool_call_id", "") not in {"", *known}:
            return Defect("unknown_tool_call_id", f"message {position}: {message['tool_call_id']!r}")
    return None
