"""What a usable list of messages is. Everything else gets a reason code."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

Message = dict[str, str]
ROLES = ("system", "user", "assistant")


class Defect(NamedTuple):
    reason: str
    detail: str


def defect(messages: Any, *, last: str) -> Defect | None:
    """Why ``messages`` cannot be used, or ``None``.

    ``last`` is the role of the last turn: ``user`` in a prompt, ``assistant`` in a conversation.
    An optional system message is followed by user and assistant in turns, the user first.
    """
    if not isinstance(messages, list):
        return Defect("messages_not_a_list", type(messages).__name__)
    if not messages:
        return Defect("empty_messages", "")
    for position, message in enumerate(messages):
        found = _message_defect(message, position)
        if found:
            return found
    return _order_defect([m["role"] for m in messages], last)


def clean(messages: list[dict[str, Any]]) -> list[Message]:
    """Role and content only, so that foreign keys cannot change what a template renders."""
    return [{"role": m["role"], "content": m["content"]} for m in messages]


def _message_defect(message: Any, position: int) -> Defect | None:
    if not isinstance(message, dict):
        return Defect("message_not_an_object", f"message {position} is {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        return Defect("unknown_role", f"message {position} has role {role!r}")
    if not content and message.get("tool_calls"):
        return Defect("tool_call_only", f"message {position}")
    if not isinstance(content, str):
        return Defect("content_not_a_string", f"message {position} has {type(content).__name__}")
    if not content.strip():
        return Defect("empty_content", f"message {position} ({role})")
    return None


def _order_defect(roles: list[str], last: str) -> Defect | None:
    turns = roles[1:] if roles[0] == "system" else roles
    if "system" in turns:
        return Defect("system_not_first", f"message {roles.index('system', 1)}")
    if "user" not in turns:
        return Defect("no_user_turn", "roles: " + ", ".join(roles))
    if turns[0] != "user":
        return Defect("assistant_first", "roles: " + ", ".join(roles))
    for position, (one, two) in enumerate(pairwise(turns)):
        if one == two:
            return Defect(f"{one}_after_{one}", f"turns {position} and {position + 1}")
    if turns[-1] != last:
        return Defect(f"{turns[-1]}_last", f"expected the last turn to be {last}'s")
    return None
