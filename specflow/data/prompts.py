"""Prompts: conversations that wait for an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specflow.data.conversations import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt, ready to be rendered; its last message is a user's or a tool's."""

    id: str
    split: str
    kind: str
    messages: list[Message]
    source: str
    row: int
    tools: list[dict[str, Any]] | None = None
    """What the model may call, in the OpenAI form."""
    thinking: bool | None = None
    """Thinking mode; none: the template's default."""
