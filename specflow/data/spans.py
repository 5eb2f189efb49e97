"""Which tokens of a rendered conversation are the assistant's, found on token level.

An assistant turn is what ``render(prefix + turn)`` adds after ``render(prefix, answer header)``.
Renderings bound it, by longest common token prefix and suffix, never by searching text:

- the header that asks for the answer ends where it stops being a prefix of the turn's rendering;
- renderings of the same turn with other contents agree with it exactly in what the template
  writes around the content: the tokens before it (for example an empty think block the template
  inserts) and the tokens after it (turn end, newline). Where the template's text ends with a special token,
  that token is the border, and nothing that contents happen to share belongs to the template.

Supervised are the content and the turn's end, and never another token of the template. The end is everything from
the content to the token that stops generation: nobody but the target writes there when it serves. A token that merges
the end of the header with the start of the content belongs to the content. Where a turn has reasoning that the
template renders, everything after the header is the target's to write.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from specflow.data.agreement import common_prefix, common_suffix
from specflow.data.pieces import Encoded
from specflow.data.rendering import Chat, Renderer
from specflow.data.turns import RenderedTurn, Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One training row. ``ids`` and ``supervised`` have equal length."""

    ids: list[int]
    supervised: list[bool]
    prompt_length: int
    """Tokens before the first supervised one."""
    rewritten: bool = False
    """The template rewrites history, so this row does not hold every assistant turn."""
    without_turn_end: bool = False
    """A turn of this row ends without a token that stops generation."""
    reasoning_dropped: bool = False
    """The template leaves out reasoning that a turn of this row has."""
    only_calls: bool = False
    """Every turn to learn from calls tools, and calls are not to be learned."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A turn in ``encoded``, which ends with it: supervised are tokens ``start`` to ``end``."""

    encoded: Encoded
    start: int
    end: int
    """One past the token that ends the turn, or past the content where none does."""
    ended: bool
    reasoning_dropped: bool
    calls_left_out: bool = False


def rows_of(
    renderer: Renderer,
    messages: Sequence[Mapping[str, Any]],
    end_ids: Collection[int],
    *,
    tools: Sequence[Any] | None = None,
    thinking: bool | None = None,
    arguments: Mapping[str, Any] | None = None,
    supervise_tool_calls: bool = True,
    last_turn_only: bool = False,
    unfinished: bool = False,
    answered: Collection[int] | None = None,
) -> list[Row]:
    """Rows of a conversation that ends with an assistant turn.

    ``answered``: places of the assistant turns to learn from; none are all of them. The last turn is one of them.

    Turns share a row where the rendering up to the end of each is how the row begins. A template that
    rewrites history (drops think blocks, for example) gives a row for each turn that it rewrites.
    Without ``supervise_tool_calls`` the calls of a turn, and its end, are not supervised. Where the last turn is
    ``unfinished`` (it ended by length), its row ends with its content.
    Raises :class:`NotAsServed`, or jinja's ``TemplateError`` where the template refuses the messages.
    """
    chat = renderer.chat(messages, tools=tools, thinking=thinking, arguments=arguments)
    mine = range(len(messages)) if answered is None else answered
    ends = [i + 1 for i, message in enumerate(messages) if message["role"] == "assistant" and i in mine]
    turns = Turns(chat)
    whole: Encoded | None = None
    groups: list[list[_Span]] = []
    for end in reversed(ends[-1:] if last_turn_only else ends):
        cut_off = unfinished and end == ends[-1]
        turn = turns.rendered(end, whole, unfinished=cut_off)
        span = _span(chat, turn, end_ids, supervise_tool_calls, cut_off)
        if whole is not None and whole.ids[: span.end] == span.encoded.ids[: span.end]:
            groups[-1].append(span)
        else:
            whole = span.encoded
            groups.append([span])
    rows = [_row(group[::-1], rewritten=len(groups) > 1) for group in reversed(groups)]
    if unfinished:
        end = groups[0][0].end
        rows[-1] = replace(rows[-1], ids=rows[-1].ids[:end], supervised=rows[-1].supervised[:end])
    return rows


def _row(spans: Sequence[_Span], *, rewritten: bool) -> Row:
    ids = spans[-1].encoded.ids
    supervised = [False] * len(ids)
    for span in spans:
        supervised[span.start : span.end] = [True] * (span.end - span.start)
    return Row(
        ids=ids,
        supervised=supervised,
        prompt_length=supervised.index(True) if True in supervised else len(ids),
        rewritten=rewritten,
        without_turn_end=not all(span.ended for span in spans),
        reasoning_dropped=any(span.reasoning_dropped for span in spans),
        only_calls=all(span.calls_left_out for span in spans),
    )


def _span(
    chat: Chat, turn: RenderedTurn, end_ids: Collection[int], supervise_tool_calls: bool, unfinished: bool
) -> _Span:
    renderer, encoded, ids = chat.renderer, turn.encoded, turn.encoded.ids
    asked = _agreement(renderer, encoded, turn.header)
    others = [_Compared.of(renderer, encoded, turn.header, other) for other in turn.others]
    start = opened = asked if turn.opening == turn.header else max(asked, _agreement(renderer, encoded, turn.opening))
    if not (turn.framed and _is_whole(renderer, encoded, opened, turn.opening)):
        start = max(opened, *(other.prefix(ids) for other in others))
    if turn.reasoning == "rendered":
        start = asked
    elif start > asked:
        inserted = renderer.decode(ids[asked:start]).strip()
        if inserted and str(turn.message["content"]).startswith(inserted):
            start = asked  # The content itself opens with it (a think tag the target wrote), so it is no insertion.
    dropped = turn.reasoning == "dropped"
    if turn.message.get("tool_calls") and not supervise_tool_calls:
        return _Span(encoded, start, max(start, _before_calls(chat, turn)), True, dropped, calls_left_out=True)
    tail = max(other.suffix(ids) for other in others)
    content_end = max(len(ids) - tail, start)
    if unfinished:
        return _Span(encoded, start, content_end, True, dropped)
    stop = _stop(renderer, ids, content_end, end_ids)
    if stop is None:  # A call may end by a token of its own, which no other turn has.
        ended = content_end > start and (ids[content_end - 1] in end_ids or renderer.is_special(ids[content_end - 1]))
        return _Span(encoded, start, content_end, ended, dropped)
    return _Span(encoded, start, stop + 1, True, dropped)


def _before_calls(chat: Chat, turn: RenderedTurn) -> int:
    """One past the last token that the turn has in common with itself without its calls, if it says anything else."""
    if not (str(turn.message["content"]).strip() or turn.reasoning == "rendered"):
        return 0
    plain = {key: value for key, value in turn.message.items() if key != "tool_calls"}
    return _agreement(chat.renderer, turn.encoded, chat.text(turn.count, instead=plain))


class _Compared(NamedTuple):
    """Ids of a text to compare with: the first ``shared`` of the turn's, then ``rest``."""

    shared: int
    rest: list[int]

    @classmethod
    def of(cls, renderer: Renderer, encoded: Encoded, beginning: str, text: str) -> _Compared:
        """``beginning`` is what ``text`` is expected to begin with, and the turn begins with."""
        if encoded.text.startswith(beginning) and text.startswith(beginning):
            return cls(*renderer.rest(encoded, len(beginning), text[len(beginning) :]))
        return cls(0, renderer.encode(text).ids)

    def prefix(self, ids: list[int]) -> int:
        return self.shared + common_prefix(ids[self.shared : self.shared + len(self.rest)], self.rest)

    def suffix(self, ids: list[int]) -> int:
        agreed = common_suffix(ids, self.rest)
        if agreed < len(self.rest):
            return agreed
        return agreed + common_suffix(ids[: len(ids) - agreed], ids[: self.shared])


def _agreement(renderer: Renderer, encoded: Encoded, text: str) -> int:
    """Tokens that ``encoded`` and ``text`` begin with together."""
    return _Compared.of(renderer, encoded, text, text).prefix(encoded.ids)


def _is_whole(renderer: Renderer, encoded: Encoded, opened: int, opening: str) -> bool:
    """Whether the first ``opened`` tokens are ``opening``, whatever follows: they are all of it, the last one special.

    What follows is then the content's, also a space of its own that some tokenizers put before a text (``▁``).
    """
    if not opened or not renderer.is_special(encoded.ids[opened - 1]):
        return False
    shared, rest = renderer.rest(encoded, len(opening), "")
    return shared + len(rest) == opened


def _stop(renderer: Renderer, ids: list[int], content_end: int, end_ids: Collection[int]) -> int | None:
    """Index of the token that ends the turn: an end token, else the first special one after the content."""
    after = range(content_end, len(ids))
    first_end = next((i for i in after if ids[i] in end_ids), None)
    return first_end if first_end is not None else next((i for i in after if renderer.is_special(ids[i])), None)
