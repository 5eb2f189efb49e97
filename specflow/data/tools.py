"""Tools and tool calls in the OpenAI form, from what data sets write instead."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


class Malformed(Exception):
    """Part of a row that cannot be used; becomes its reason in the quarantine."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Calls as ``{"type": "function", "function": {"name", "arguments": object}}``, with ``id`` where there is one.

    Also taken: a list as JSON text, ``{"name", "arguments"}`` without the shell, arguments as JSON text.
    Raises :class:`Malformed`.
    """
    calls = _unpacked(calls, "tool_calls_not_a_list", where)
    if not calls:
        return []
    if not isinstance(calls, list):
        raise Malformed("tool_calls_not_a_list", f"{where} has {type(calls).__name__}")
    return [_call(call, where) for call in calls]


def as_sent(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as servers take them: arguments of calls as JSON text, and an id for every call and result.

    Calls without id are numbered; results without one answer the calls in their order.
    """
    made, waiting, count = [], [], 0
    for message in messages:
        sent = dict(message)
        if message.get("tool_calls"):
            sent["tool_calls"] = [_sent(call, f"call_{count + n}") for n, call in enumerate(message["tool_calls"])]
            waiting = [call["id"] for call in sent["tool_calls"]]
            count += len(waiting)
        elif message["role"] == "tool":
            named = sent.setdefault("tool_call_id", waiting[0] if waiting else f"call_{count}")
            waiting = [name for name in waiting if name != named]
        made.append(sent)
    return made


def _sent(call: Mapping[str, Any], name: str) -> dict[str, Any]:
    function, arguments = call["function"], call["function"].get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return {"id": name, "type": "function", **call, "function": {**function, "arguments": text}}


def tools(value: Any) -> list[dict[str, Any]] | None:
    """Tools as ``{"type": "function", "function": {"name", ...}}``; none and an empty list are none.

    Also taken: a list as JSON text, functions without the shell. Raises :class:`Malformed`.
    """
    value = _unpacked(value, "tools_not_a_list", "tools")
    if not value:
        return None
    if not isinstance(value, list):
        raise Malformed("tools_not_a_list", type(value).__name__)
    return [_tool(_unpacked(tool, "tool_malformed", "tools"), position) for position, tool in enumerate(value)]


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise Malformed("tool_call_malformed", f"{where}: expected a function with a name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _unpacked(arguments, "tool_arguments_not_an_object", where)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise Malformed("tool_arguments_not_an_object", f"{where}: {type(arguments).__name__}")
    made = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return made | ({"id": str(call["id"])} if call.get("id") else {})


def _tool(tool: Any, position: int) -> dict[str, Any]:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise Malformed("tool_malformed", f"tool {position}: expected a function with a name")
    return {"type": "function", "function": function}


def _unpacked(value: Any, reason: str, where: str) -> Any:
    """The value of JSON text; anything else as it is; blank text is none."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return json.loads(value)
    except ValueError as error:
        raise Malformed(reason, f"{where}: {error}") from error
