"""``messages``: turns of ``role`` and ``content``, as OpenAI's API takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specflow.config.inputs import PromptSource
from specflow.data.inputs.forms.registry import found_key, registered, turns_of, with_system

KEYS = ("messages", "conversations", "conversation")


@registered("messages")
class Messages:
    def recognises(self, row: Mapping[str, Any], source: PromptSource) -> bool:
        key = found_key(row, source.fields.messages, KEYS)
        return key is not None and (key == "messages" or _has_roles(row[key])) and not _has_from(row[key])

    def messages(self, row: Mapping[str, Any], source: PromptSource) -> Any:
        turns = turns_of(row, source, KEYS)
        return with_system(row, source, turns) if isinstance(turns, list) and turns else turns


def _has_roles(turns: Any) -> bool:
    return isinstance(turns, list) and any(isinstance(turn, dict) and "role" in turn for turn in turns)


def _has_from(turns: Any) -> bool:
    return isinstance(turns, list) and any(isinstance(turn, dict) and "from" in turn for turn in turns)
