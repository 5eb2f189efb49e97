"""Rows of ``conversations.jsonl``: whether they can be used, and which turns of them are the target's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specflow.data.conversations import Defect, Message, usable
from specflow.data.produced import produced_ids


def usable_row(row: Any) -> list[Message] | Defect:
    """The messages of a row, or why nothing can be made of it.

    A turn may be blank as text where the ids that the target produced are known.
    """
    if not isinstance(row, Mapping):
        return Defect("not_an_object", type(row).__name__)
    missing = [key for key in ("id", "split", "kind") if key not in row]
    if missing:
        return Defect("keys_missing", ", ".join(missing))
    given = row.get("messages")
    blank = _blank_turns(given) if isinstance(given, list) and produced_ids(row) else {}
    if blank:
        given = [{**m, "content": "-"} if i in blank else m for i, m in enumerate(given or ())]
    found = usable(given, last="assistant")
    if isinstance(found, Defect):
        return found
    for place, content in blank.items():
        found[place] |= {"content": content}
    return _wrong_places(row.get("answered"), found) or found


def _blank_turns(messages: list[Any]) -> dict[int, str]:
    """Contents without any character to see, by place."""
    return {
        i: m["content"]
        for i, m in enumerate(messages)
        if isinstance(m, Mapping)
        and m.get("role") == "assistant"
        and isinstance(m.get("content"), str)
        and not m["content"].strip()
    }


def _wrong_places(places: Any, messages: Sequence[Message]) -> Defect | None:
    """``answered`` has some of the assistant's turns, the last one among them; without it, all are learned."""
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if places is None or (isinstance(places, list) and turns[-1] in places and all(p in turns for p in places)):
        return None
    return Defect("answered_wrong", f"{str(places)[:60]}: the assistant's turns are {str(turns)[:60]}")
