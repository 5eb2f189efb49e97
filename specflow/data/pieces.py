"""Token ids of texts that share most of their characters, each distinct piece encoded once.

A tokenizer takes special tokens out of a text before it does anything else, so that what stands between
two of them is encoded by itself. A text may therefore be cut before a special token, and the ids of
the pieces put together are the ids of the whole, provided that the token

- is matched on the raw text (``normalized: false``), as it stands (no ``lstrip``, no ``single_word``), and
- overlaps no other such token, nor itself, in a way that lets another match begin before it.

Tokens that fail a condition are no cuts; a tokenizer with none encodes every text as a whole. Cuts only
save work: which tokens are supervised never depends on them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from specflow.data.flat import flat_ids

SHORT = 64
"""Characters of texts worth keeping for long: headers and turn ends, the same in every row."""
MOST_SHORT, MOST_LONG = 4096, 256
"""Texts that are kept; the long ones for the further renderings of the same row."""
PROBE = "  A probe: 3 x 7 = 21\n\n\tnaïve 北京 🙂 don't  "


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text with its token ids. Piece ``j`` begins at character ``starts[j]`` and token ``counts[j]``."""

    text: str
    ids: list[int]
    starts: list[int]
    reaches: list[int]
    """Where the special token ends that a piece begins with; the start of the first one, which may have none."""
    counts: list[int]


class Rest(NamedTuple):
    """The end of a text that begins as another one does."""

    piece: int
    """Pieces that the texts share."""
    encoded: Encoded
    """From there on."""


class PieceEncoder:
    """Encodes texts without adding special tokens.

    ``cuts`` are texts of special tokens to cut at, where that is exact.
    """

    def __init__(self, tokenizer: Any, cuts: Iterable[str]) -> None:
        self._batch, core = _plain_encoder(tokenizer)
        self._cuts = safe_cuts(core, cuts) if core is not None else ()
        self._short: dict[str, list[int]] = {}
        self._long: dict[str, list[int]] = {}
        self._repeated = lru_cache(maxsize=MOST_SHORT)(self._encode)

    @property
    def cuts(self) -> tuple[str, ...]:
        return self._cuts

    def encode(self, text: str) -> Encoded:
        return self._repeated(text) if len(text) <= SHORT else self._encode(text)

    def rest(self, base: Encoded, length: int, suffix: str) -> Rest:
        """What the encoding of ``base.text[:length] + suffix`` is after the pieces that it has from ``base``."""
        piece = bisect_right(base.reaches, length) - 1
        start = base.starts[piece] if piece > 0 else 0
        return Rest(max(piece, 0), self.encode(base.text[start:length] + suffix))

    def continued(self, base: Encoded, length: int, suffix: str) -> Encoded:
        """The encoding of ``base.text[:length] + suffix``."""
        piece, rest = self.rest(base, length, suffix)
        start, count = base.starts[piece], base.counts[piece]
        return Encoded(
            base.text[:start] + rest.text,
            base.ids[:count] + rest.ids,
            base.starts[:piece] + [start + s for s in rest.starts],
            base.reaches[:piece] + [start + r for r in rest.reaches],
            base.counts[:piece] + [count + c for c in rest.counts],
        )

    def _encode(self, text: str) -> Encoded:
        starts, reaches = self._places(text)
        pieces = [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]
        self._learn(pieces)
        ids: list[int] = []
        counts = []
        for piece in pieces:
            counts.append(len(ids))
            ids += (self._short if len(piece) <= SHORT else self._long)[piece]
        return Encoded(text, ids, starts, reaches, counts)

    def _learn(self, pieces: Sequence[str]) -> None:
        new = [p for p in dict.fromkeys(pieces) if p not in self._short and p not in self._long]
        if not new:
            return
        if len(self._short) > MOST_SHORT or len(self._long) > MOST_LONG:
            self._short.clear()
            self._long.clear()
            new = list(dict.fromkeys(pieces))
        for piece, ids in zip(new, self._batch(new), strict=True):
            (self._short if len(piece) <= SHORT else self._long)[piece] = ids

    def _places(self, text: str) -> tuple[list[int], list[int]]:
        found = []
        for cut in self._cuts:
            at = text.find(cut)
            while at >= 0:
                found.append((at, at + len(cut)))
                at = text.find(cut, at + len(cut))
        found.sort()
        if not found or found[0][0] > 0:
            found.insert(0, (0, 0))
        return [start for start, _ in found], [reach for _, reach in found]


def safe_cuts(core: Any, cuts: Iterable[str]) -> tuple[str, ...]:
    """Those of ``cuts`` that ``core`` (a ``tokenizers.Tokenizer``) always matches where they stand."""
    added = {token.content: token for token in core.get_added_tokens_decoder().values()}
    raw = [t for t in added.values() if not t.normalized and not (t.special and core.encode_special_tokens)]
    contents = [t.content for t in raw]
    ok = {t.content for t in raw if not t.lstrip and not t.single_word and t.content == t.content.strip()}
    return tuple(cut for cut in dict.fromkeys(cuts) if cut and cut in ok and not _disturbed(cut, contents))


def _disturbed(cut: str, others: Sequence[str]) -> bool:
    """Whether a match of another token, or of ``cut`` itself, may begin earlier and reach into ``cut``."""
    for other in others:
        if other != cut and cut in other:
            return True
        if any(other.endswith(cut[:n]) for n in range(1, min(len(cut), len(other) + 1))):
            return True
    return False


def _plain_encoder(tokenizer: Any) -> tuple[Callable[[Sequence[str]], list[list[int]]], Any]:
    """(function from texts to ids, the ``tokenizers.Tokenizer`` behind it or ``None``)."""

    def slow(texts: Sequence[str]) -> list[list[int]]:
        return [flat_ids(tokenizer(text, add_special_tokens=False)) for text in texts]

    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None:
        return slow, None
    expected = slow([PROBE])  # also switches padding and truncation off, as every call does

    def fast(texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in core.encode_batch_fast(texts, add_special_tokens=False)]

    return (fast, core) if fast([PROBE]) == expected else (slow, None)
