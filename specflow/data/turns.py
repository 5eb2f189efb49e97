"""The renderings that bound one assistant turn, as few of them as are needed.

A finished turn must begin as serving begins it, with ``render(prefix, answer header)``. Where the template writes
another beginning into a finished turn (it opens a think block in the header, and leaves thoughts out of
finished turns), the turn is put together as it is served: the header, what the target has to write after it, and
what the template writes after a content. Where the turn's words do not continue the header, it cannot be used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specflow.data.agreement import common_prefix
from specflow.data.frames import Frame, frame_of, stand_ins_for
from specflow.data.pieces import Encoded
from specflow.data.quarantine import DataError
from specflow.data.rendering import Chat

PLAIN = {"role", "content"}
"""Keys of a turn that has nothing but words."""
THOUGHTS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "[THINK]": "[/THINK]",
    "<seed:think>": "</seed:think>",
    "<|channel|>analysis<|message|>": "<|end|>",
}
"""How a thought is opened and closed, in the formats of the known model families."""
LONGEST_OPENING = 256
"""Characters of a turn that a header may have written already."""
Shape = tuple[Any, ...]
MOST_SHAPES = 4096
"""Frames that are kept; conversations of further shapes are rendered in full."""


class NotAsServed(DataError):
    """A finished turn does not begin as serving begins it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedTurn:
    """One assistant turn and what to compare it with."""

    count: int
    """Messages up to and with the turn."""
    message: Mapping[str, Any]
    header: str
    """What asks for the answer."""
    opening: str
    """The header, and what the template writes after it before every content."""
    framed: bool
    """The content follows right after ``opening``; otherwise only the renderings in ``others`` tell where it begins."""
    encoded: Encoded
    others: Sequence[str]
    """Renderings of the turn with another content."""
    reasoning: Literal["none", "rendered", "dropped"] = "none"


class Turns:
    """The turns of one conversation."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._frames = chat.renderer.frames
        self._known = chat.renderer.stand_ins

    def rendered(self, count: int, whole: Encoded | None, *, unfinished: bool = False) -> RenderedTurn:
        """The turn that is message ``count - 1``. ``whole`` is the encoding of a longer rendering, if there is one.

        An ``unfinished`` turn ended by length: it may end within its thoughts.
        """
        message = self._chat.messages[count - 1]
        header = self._chat.text(count - 1, answer=True)
        through = self._in_history(count, header, whole) or self._chat.text(count)
        if not through.startswith(header):
            return self._as_served(count, header, unfinished)
        frame, others = self._others(count, header, through)
        opening = header + frame.before if frame else header
        framed = frame is not None and through.startswith(opening)
        return RenderedTurn(
            count=count,
            message=message,
            header=header,
            opening=opening if framed else header,
            framed=framed,
            encoded=self._encoded(through, whole),
            others=others,
            reasoning=self._reasoning(count, through),
        )

    def _in_history(self, count: int, header: str, whole: Encoded | None) -> str | None:
        """The turn's rendering where ``whole`` begins with it, by what is known of conversations of this shape."""
        message = self._chat.messages[count - 1]
        frame = self._frames.get(self._shape(count))
        if whole is None or frame is None or message.keys() != PLAIN:
            return None
        return frame.around(whole.text, header, str(message["content"]))

    def _encoded(self, text: str, whole: Encoded | None) -> Encoded:
        renderer = self._chat.renderer
        if whole is None or not whole.text.startswith(text):
            return renderer.encode(text)
        return renderer.continued(whole, len(text), "")

    def _others(self, count: int, header: str, through: str) -> tuple[Frame | None, list[str]]:
        content = str(self._chat.messages[count - 1]["content"])
        stand_ins, shape = stand_ins_for(content, self._known), self._shape(count)
        frame = self._frames.get(shape)
        if frame and frame.around(through, header, content) == through:
            return frame, [header + frame.before + c + frame.after for c in stand_ins]
        texts = self._stood_in(count, stand_ins)
        if not all(text.startswith(header) for text in texts):
            return None, texts
        frame = frame_of([text[len(header) :] for text in texts], stand_ins)
        if frame and len(self._frames) < MOST_SHAPES:
            self._frames[shape] = frame
        return frame, texts

    def _stood_in(self, count: int, stand_ins: Sequence[str]) -> list[str]:
        return [self._chat.text(count, instead={"role": "assistant", "content": c}) for c in stand_ins]

    def _shape(self, count: int) -> Shape:
        """What a template may look at, besides the words."""
        roles = tuple((m["role"], *sorted(m)) for m in self._chat.messages[:count])
        return bool(self._chat.tools), tuple(sorted(map(repr, self._chat.arguments.items()))), roles

    def _reasoning(self, count: int, through: str) -> Literal["none", "rendered", "dropped"]:
        message = self._chat.messages[count - 1]
        reasoning = message.get("reasoning_content")
        if not reasoning:
            return "none"
        other = stand_ins_for(str(reasoning), self._known)[0]
        changed = self._chat.text(count, instead={**message, "reasoning_content": other, "thinking": other})
        return "dropped" if changed == through else "rendered"

    def _as_served(self, count: int, header: str, unfinished: bool) -> RenderedTurn:
        message = self._chat.messages[count - 1]
        if thinks(message) and not opened_thought(header):
            raise NotAsServed(
                f"the turn has thoughts, and serving ends the prompt with {header[-40:]!r}, after which the target "
                "writes none; see `thinking`"
            )
        answer = inline(message, opened=header)
        stand_ins = stand_ins_for(answer, self._known)
        frame = frame_of(self._stood_in(count, stand_ins), stand_ins)
        if frame and frame.before.startswith(header):
            raise NotAsServed("the turn has thoughts, and serving in this mode begins it without; see `thinking`")
        shared = common_prefix(frame.before, header) if frame else 0
        rest = continuation(answer, header, shared, unfinished=unfinished)
        if frame is None or rest is None or message.get("tool_calls"):
            raise NotAsServed(
                f"serving ends the prompt with {header[-40:]!r}, which is not how the finished turn begins; "
                "choose the thinking mode of the data, or regenerate the answers"
            )
        return RenderedTurn(
            count=count,
            message={**message, "content": answer},
            header=header,
            opening=header,
            framed=True,
            encoded=self._chat.renderer.encode(header + rest + frame.after),
            others=[header + c + frame.after for c in stand_ins],
        )


def thinks(message: Mapping[str, Any]) -> bool:
    """Whether a turn has thoughts, apart from its content or at the start of it."""
    return bool(message.get("reasoning_content")) or str(message["content"]).lstrip().startswith(tuple(THOUGHTS))


def opened_thought(header: str) -> str | None:
    """What opens a thought at the end of ``header``, if something does."""
    return next((opening for opening in THOUGHTS if header.rstrip().endswith(opening)), None)


def inline(message: Mapping[str, Any], *, opened: str) -> str:
    """What the target wrote, reasoning included, in the form that follows a prompt that opened a think block."""
    reasoning, content = message.get("reasoning_content"), str(message["content"])
    if not reasoning:
        return content
    if not opened.endswith("\n"):
        return f"<think>{reasoning}</think>{content}"
    return "<think>\n" + str(reasoning).strip("\n") + "\n</think>\n\n" + content.lstrip("\n")


def continuation(answer: str, header: str, shared: int, *, unfinished: bool = False) -> str | None:
    """What is left to write of ``answer`` after ``header``; none if the header opened a thought that it does not have.

    From character ``shared`` on, the header is not what a finished turn begins with. An answer that closes the thought
    without opening it is what the target wrote after the header, whole; so is an ``unfinished`` one that never closes
    it.
    """
    needed = len(header[shared:].strip())
    if not needed:
        return answer
    lengths = range(min(len(answer), len(header), LONGEST_OPENING), needed - 1, -1)
    written = next((n for n in lengths if header.endswith(answer[:n])), 0)
    opening = opened_thought(header)
    if written or opening is None:
        return answer[written:]
    thought, closing, _ = answer.partition(THOUGHTS[opening])
    return answer if (closing or unfinished) and opening not in thought else None
