"""Server-sent events, however the connection cuts them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from specflow.serving.load.events import Events

TEXT = b': keep-alive\r\n\r\ndata: {"a": 1}\n\nevent: note\ndata:{"b":\ndata: 2}\r\n\r\nid: 7\n\ndata: [DONE]\n\n'
DATA = [b'{"a": 1}', b'{"b":\n2}', b"[DONE]"]


@given(st.lists(st.integers(0, len(TEXT)), max_size=20))
def test_any_cut_gives_the_same_events(cuts: list[int]) -> None:
    events = Events()
    places = [0, *sorted(cuts), len(TEXT)]
    pieces = [TEXT[a:b] for a, b in pairwise(places)]
    assert [data for piece in pieces for data in events.feed(piece)] == DATA


def test_an_event_comes_with_the_piece_that_ends_it() -> None:
    events = Events()
    assert events.feed(b"data: x\n") == []
    assert events.feed(b"\ndata: y\n\n") == [b"x", b"y"]
