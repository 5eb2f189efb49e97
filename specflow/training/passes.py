"""Which documents and anchors of a step share a forward pass: memory is bounded, loss and gradients stay the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from specflow.drafters.training import Source


def split_sources(
    sources: Sequence[Source], *, anchors: int | None = None, documents: int | None = None
) -> Iterator[list[Source]]:
    """Groups of at most ``documents`` documents and ``anchors`` anchors, in order.

    A document with more anchors than fit is continued in the next group, which projects its context again. Where
    anchors are bounded, every anchor appears once and documents without one are left out.
    """
    if anchors is None:
        size = documents or max(1, len(sources))
        for start in range(0, len(sources), size):
            yield list(sources[start : start + size])
    else:
        yield from _bounded(sources, anchors=anchors, documents=documents)


def _bounded(sources: Sequence[Source], *, anchors: int, documents: int | None) -> Iterator[list[Source]]:
    if anchors < 1:
        raise ValueError(f"expected room for at least one anchor in a pass, found {anchors}")
    group: list[Source] = []
    room = anchors
    for source in sources:
        first, count = 0, source.anchors.numel()
        while first < count:
            if not room or len(group) == documents:
                yield group
                group, room = [], anchors
            taken = min(room, count - first)
            whole = taken == count
            group.append(source if whole else replace(source, anchors=source.anchors[first : first + taken]))
            first, room = first + taken, room - taken
    if group:
        yield group
