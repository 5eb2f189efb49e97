"""Which documents and anchors of a step share a forward pass: memory is bounded, loss and gradients stay the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from specflow.drafters.dflash.blocks import Source

ROWS_PER_PASS = 4096
"""Block rows of one pass: enough to keep products efficient, few enough to keep activations below the weights."""


def split_sources(sources: Sequence[Source], *, anchors: int, documents: int | None = None) -> Iterator[list[Source]]:
    """Groups of at most ``anchors`` anchors and ``documents`` documents, in order; all anchors appear once.

    A document with more anchors than fit is continued in the next group, which costs its context's projection again.
    Documents without an anchor are left out.
    """
    if anchors < 1:
        raise ValueError(f"expected at least one anchor in a pass, found {anchors}")
    group: list[Source] = []
    room = anchors
    for source in sources:
        first, count = 0, source.anchors.numel()
        while first < count:
            if not room or len(group) == documents:
                yield group
                group, room = [], anchors
            taken = min(room, count - first)
            part = source.anchors[first : first + taken]
            group.append(source if taken == count else dataclasses.replace(source, anchors=part))
            first, room = first + taken, room - taken
    if group:
        yield group
