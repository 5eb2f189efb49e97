"""Which documents of a step share a forward pass: memory is bounded, loss and gradients stay the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specflow.drafters.training import Source


def split_sources(
    sources: Sequence[Source], *, anchors: int | None = None, documents: int | None = None
) -> Iterator[list[Source]]:
    """Groups of at most ``documents`` documents, in order. ``anchors``: not yet bounded."""
    size = documents or max(1, len(sources))
    for start in range(0, len(sources), size):
        yield list(sources[start : start + size])
