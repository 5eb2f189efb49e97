"""``text``: one preformatted text per row, whose turns begin with declared markers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specflow.config.inputs import Markers, PromptSource
from specflow.data.inputs.forms.registry import registered
from specflow.data.tools import Malformed


@registered("text")
class Text:
    def recognises(self, row: Mapping[str, Any], source: PromptSource) -> bool:
        value = row.get(source.fields.text or "text")
        return source.markers is not None and isinstance(value, str) and source.markers.user in value

    def messages(self, row: Mapping[str, Any], source: PromptSource) -> Any:
        key, markers = source.fields.text or "text", source.markers
        value = row.get(key)
        if markers is None or not isinstance(value, str):
            raise Malformed("no_text", f"expected text under the key {key}, found {sorted(map(str, row))}")
        return list(_turns(value, markers))


def _turns(text: str, markers: Markers) -> Iterator[dict[str, str]]:
    """Turns in their order, without markers and without the white space around them."""
    starts = {markers.user: "user", markers.assistant: "assistant"}
    if markers.system:
        starts[markers.system] = "system"
    position, role = 0, ""
    while position <= len(text):
        found, marker = _next(text, position, starts)
        content = text[position:found].strip()
        if markers.end:
            content = content.removesuffix(markers.end).rstrip()
        if role and (content or marker):
            yield {"role": role, "content": content}
        elif not role and content:
            raise Malformed("text_before_marker", f"{content[:40]!r}")
        if not marker:
            return
        position, role = found + len(marker), starts[marker]


def _next(text: str, position: int, starts: Mapping[str, str]) -> tuple[int, str]:
    """Where the next marker is and which; the longest of those at one place; the end of the text and none."""
    places = [(found, -len(marker), marker) for marker in starts if (found := text.find(marker, position)) >= 0]
    if not places:
        return len(text), ""
    found, _, marker = min(places)
    return found, marker
