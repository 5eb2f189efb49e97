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
from typing import Any

from specflow.data.flat import flat_ids

SHORT = 64
"""Characters of pieces worth keeping for long: headers and turn ends, the same in every row."""
PROBE = "  A probe: 3 x 7 = 21\n\n\tnaïve 北京 🙂 don't  "


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text with its token ids. Piece ``j`` begins at character ``starts[j]`` and token ``counts[j]``."""

    text: str
    ids: list[int]
    starts: list[int]
    heads: list[int]
    """Length of the special token that a piece begins with; 0 for the first one, which may have none."""
    counts: list[int]


class PieceEncoder:
    """Encodes texts without adding special tokens.

    ``cuts`` are texts of special tokens to cut at, where that is exact.
    """

    def __init__(self, tokenizer: Any, cuts: Iterable[str]) -> None:
        encode, core = _plain_encoder(tokenizer)
        self._cuts = safe_cuts(core, cuts) if core is not None else ()
        short, long = lru_cache(maxsize=4096)(encode), lru_cache(maxsize=256)(encode)
        self._piece: Callable[[str], tuple[int, ...]] = lambda text: (short if len(text) <= SHORT else long)(text)

    @property
    def cuts(self) -> tuple[str, ...]:
        return self._cuts

    def encode(self, text: str) -> Encoded:
        starts, heads = self._places(text)
        ids: list[int] = []
        counts = []
        for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
            counts.append(len(ids))
            ids += self._piece(text[start:end])
        return Encoded(text, ids, starts, heads, counts)

    def continued(self, base: Encoded, length: int, suffix: str) -> tuple[Encoded, int]:
        """The encoding of ``base.text[:length] + suffix``, and how many of its first tokens are those of ``base``."""
        piece = bisect_right([s + h for s, h in zip(base.starts, base.heads, strict=True)], length) - 1
        if piece < 0:
            return self.encode(base.text[:length] + suffix), 0
        start, count = base.starts[piece], base.counts[piece]
        rest = self.encode(base.text[start:length] + suffix)
        made = Encoded(
            base.text[:start] + rest.text,
            base.ids[:count] + rest.ids,
            base.starts[:piece] + [start + s for s in rest.starts],
            base.heads[:piece] + rest.heads,
            base.counts[:piece] + [count + c for c in rest.counts],
        )
        return made, count

    def _places(self, text: str) -> tuple[list[int], list[int]]:
        found = []
        for cut in self._cuts:
            at = text.find(cut)
            while at >= 0:
                found.append((at, len(cut)))
                at = text.find(cut, at + len(cut))
        found.sort()
        if not found or found[0][0] > 0:
            found.insert(0, (0, 0))
        return [at for at, _ in found], [length for _, length in found]


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


def _plain_encoder(tokenizer: Any) -> tuple[Callable[[str], tuple[int, ...]], Any]:
    """(function from text to ids, the ``tokenizers.Tokenizer`` behind it or ``None``)."""

    def slow(text: str) -> tuple[int, ...]:
        return tuple(flat_ids(tokenizer(text, add_special_tokens=False)))

    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None:
        return slow, None
    expected = slow(PROBE)  # also switches padding and truncation off, as every call does

    def fast(text: str) -> tuple[int, ...]:
        return tuple(core.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    return (fast, core) if fast(PROBE) == expected else (slow, None)
