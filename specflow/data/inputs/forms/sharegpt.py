"""``sharegpt``: ``conversations`` of ``from`` and ``value``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specflow.config.inputs import PromptSource
from specflow.data.inputs.forms.registry import found_key, registered, turns_of, with_system
from specflow.data.tools import Malformed

KEYS = ("conversations", "conversation", "messages")
ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
CALL = "function_call"


@registered("sharegpt")
class ShareGpt:
    def recognises(self, row: Mapping[str, Any], source: PromptSource) -> bool:
        key = found_key(row, source.fields.messages, KEYS)
        turns = row[key] if key else None
        return isinstance(turns, list) and any(isinstance(turn, dict) and "from" in turn for turn in turns)

    def messages(self, row: Mapping[str, Any], source: PromptSource) -> Any:
        turns = turns_of(row, source, KEYS)
        if not isinstance(turns, list) or not turns:
            return turns
        return with_system(row, source, [_turn(turn, position) for position, turn in enumerate(turns)])


def _turn(turn: Any, position: int) -> Any:
    if not isinstance(turn, dict):
        return turn
    who, value = turn.get("from"), turn.get("value")
    if who == CALL:
        return {"role": "assistant", "content": None, "tool_calls": _calls(value)}
    if who not in ROLES:
        raise Malformed("unknown_role", f"message {position} is from {who!r}")
    return {"role": ROLES[who], "content": value}


def _calls(value: Any) -> Any:
    """One call or a list of them, as JSON text or not; what it holds is judged with the messages."""
    if isinstance(value, dict):
        return [value]
    return f"[{value}]" if isinstance(value, str) and not value.lstrip().startswith("[") else value
