"""Documents longer than ``max_length``: cut, or shown through windows.

Windows of one document have its id with ``@offset``, and overlap. Tokens of the overlap are context: they are
supervised in the window where they came first, so that every supervised token of the document is supervised
in exactly one window. A window is a document of its own: it starts again at position 0 and sees nothing
before its first token. So its tokens are not what the target chooses there, even where they are its greedy choices
in the whole document: only the first window stays ``greedy``. Held-out documents are always cut, since their prompts
are served.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from specflow.data.documents import TokenDocument


def cut(document: TokenDocument, length: int) -> TokenDocument:
    """The first ``length`` tokens, with exactly their marks."""
    if len(document.ids) <= length:
        return document
    return replace(document, truncated=True, ids=document.ids[:length], supervised=document.supervised[:length])


def windows(document: TokenDocument, length: int, *, overlap: int) -> Iterator[TokenDocument]:
    """Windows of at most ``length`` tokens with something supervised; neighbours share ``overlap`` tokens."""
    total = len(document.ids)
    if total <= length:
        yield document
        return
    for offset in range(0, total - overlap, length - overlap):
        ids = document.ids[offset : offset + length]
        supervised = document.supervised[offset : offset + length]
        if offset:
            supervised[:overlap] = [False] * min(overlap, len(supervised))
        if True not in supervised:
            continue
        yield replace(
            document,
            id=f"{document.id}@{offset}" if offset else document.id,
            ids=ids,
            supervised=supervised,
            prompt_length=supervised.index(True),
            greedy=document.greedy and offset == 0,
            offset=offset,
        )
