"""What a template writes around the content of an assistant turn.

``render(prefix + turn)`` is taken apart as ``header + before + content + after``, where ``header`` is what asks for
the answer. Two stand-ins of one character tell ``before`` and ``after``: their renderings differ in that character
alone. What was learned for one conversation is used for another of the same shape where the parts put together are
what the template renders for it; where they are not, the template is asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specflow.data.agreement import common_prefix

STAND_INS = "x7qZ?%#kJ4wVz9@_~&"
"""Contents of one character, to compare with: at least some do not occur in a given content."""


@dataclass(frozen=True, slots=True)
class Frame:
    """``before`` and ``after`` the content of a turn."""

    before: str
    after: str

    def around(self, text: str, header: str, content: str) -> str | None:
        """``header`` and ``content`` in this frame, where ``text`` begins with them; the content may be stripped."""
        for each in (content, content.strip()):
            framed = "".join((header, self.before, each, self.after))
            if text.startswith(framed):
                return framed
        return None


def frame_of(renderings: Sequence[str], stand_ins: Sequence[str]) -> Frame | None:
    """The frame in which the renderings of one-character ``stand_ins`` agree, if there is one."""
    first, second = renderings[:2]
    place = common_prefix(first, second)
    frame = Frame(first[:place], first[place + 1 :])
    agree = all(r == frame.before + c + frame.after for r, c in zip(renderings, stand_ins, strict=True))
    return frame if agree else None


def stand_ins_for(content: str, known: str = STAND_INS) -> list[str]:
    """Three of the ``known`` stand-ins that cannot share a token with the start or the end of ``content``.

    Each agrees with the content's rendering in template tokens only. One alone may agree in too few,
    if it merges with the template; all three do not.
    """
    stripped = content.strip()
    edges = {content[:1], content[-1:], stripped[:1], stripped[-1:]}
    absent = [c for c in known if c not in content]
    # Where a content has nearly all of them, at least its edges must differ.
    return [*absent, *(c for c in known if c not in edges and c in content)][:3]
