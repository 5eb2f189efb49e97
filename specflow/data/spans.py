"""Which tokens of a rendered conversation are the assistant's, found on token level.

An assistant turn is what ``render(prefix + turn)`` adds after ``render(prefix, answer header)``.
Three renderings bound it, by longest common token prefix and suffix, never by searching text:

- the header that asks for the answer ends where it stops being a prefix of the turn's rendering;
- two renderings of the same turn with other contents agree with it exactly in what the template
  writes around the content: the tokens before it (for example an empty think block the template
  inserts; unless the content itself opens with it) and the tokens after it (turn end, newline).

Supervised are the content and the token that ends the turn, never another template token. A token
that merges the end of the header with the start of the content belongs to the content.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from specflow.data.conversations import Message
from specflow.data.rendering import Renderer

STAND_INS = "x7qZ?%#kJ4wVz9@_~&"
"""Contents of one character, to compare with: at least some do not occur in a given content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One training row. ``ids`` and ``supervised`` have equal length."""

    ids: list[int]
    supervised: list[bool]
    prompt_length: int
    """Tokens before the first supervised one."""
    rewritten: bool = False
    """The template rewrites history, so this row holds one assistant turn of several."""
    without_turn_end: bool = False
    """A turn of this row ends without a token that stops generation."""


@dataclass(frozen=True, slots=True)
class _Turn:
    ids: list[int]
    start: int
    end: int
    """One past the turn-end token, or past the content if there is none."""
    ended: bool


def rows_of(renderer: Renderer, messages: Sequence[Message], end_ids: Collection[int]) -> list[Row]:
    """Rows of a conversation that ends with an assistant turn.

    One row if every earlier state of the conversation is a prefix of the whole; one row per
    assistant turn if the template rewrites history (drops think blocks, for example).
    """
    whole = renderer.ids(messages)
    turns = [_turn(renderer, messages[: i + 1], end_ids) for i, m in enumerate(messages) if m["role"] == "assistant"]
    if all(whole[: turn.end] == turn.ids[: turn.end] for turn in turns):
        return [_row(whole, turns, rewritten=False)]
    return [_row(turn.ids, [turn], rewritten=True) for turn in turns]


def _row(ids: list[int], turns: Sequence[_Turn], *, rewritten: bool) -> Row:
    supervised = [False] * len(ids)
    for turn in turns:
        supervised[turn.start : turn.end] = [True] * (turn.end - turn.start)
    return Row(
        ids=ids,
        supervised=supervised,
        prompt_length=turns[0].start,
        rewritten=rewritten,
        without_turn_end=not all(turn.ended for turn in turns),
    )


def _turn(renderer: Renderer, messages: Sequence[Message], end_ids: Collection[int]) -> _Turn:
    prefix = messages[:-1]
    through = renderer.ids(messages)
    header = renderer.ids(prefix, answer=True)
    others = [renderer.ids([*prefix, {"role": "assistant", "content": c}]) for c in _stand_ins(messages[-1]["content"])]
    asked = common_prefix(through, header)
    start = max(asked, *(common_prefix(through, other) for other in others))
    inserted = renderer.text(through[asked:start]).strip()
    if inserted and messages[-1]["content"].startswith(inserted):
        start = asked  # The content itself opens with it (a think tag the target wrote), so it is no insertion.
    tail = max(common_prefix(through[::-1], other[::-1]) for other in others)
    content_end = max(len(through) - tail, start)
    stop = _stop(renderer, through, content_end, end_ids)
    return _Turn(through, start, content_end if stop is None else stop + 1, stop is not None)


def _stand_ins(content: str) -> list[str]:
    """Three stand-ins that cannot share a token with the start or the end of ``content``.

    Each agrees with the content's rendering in template tokens only. One alone may agree in too few,
    if it merges with the template; all three do not.
    """
    stripped = content.strip()
    edges = {content[:1], content[-1:], stripped[:1], stripped[-1:]}
    absent = [c for c in STAND_INS if c not in content]
    # Where a content has nearly all of them, at least its edges must differ.
    return [*absent, *(c for c in STAND_INS if c not in edges and c in content)][:3]


def _stop(renderer: Renderer, ids: list[int], content_end: int, end_ids: Collection[int]) -> int | None:
    """Index of the token that ends the turn: an end token, else the first special one after the content."""
    after = range(content_end, len(ids))
    ends = (i for i in after if ids[i] in end_ids)
    specials = (i for i in after if renderer.is_special(ids[i]))
    return next(ends, None) or next(specials, None)


def common_prefix(one: Sequence[int], two: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    for i, (a, b) in enumerate(zip(one, two, strict=False)):
        if a != b:
            return i
    return min(len(one), len(two))
