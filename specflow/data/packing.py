"""Documents into packs of a fixed length, by best-fit decreasing, never across a pack's border.

The longest document goes first, each into the fullest pack that still has room for it. Never more than 11/9 of the
fewest possible packs and one, and in practice hardly any padding. A document is never split: its tokens see each
other and nothing else, which ``document_ids`` says to the attention.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specflow.data.quarantine import DataError

PADDING = -1
"""Document id of a position that holds no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """``packs[p]`` are the indices of the documents of pack ``p``, in the order in which they lie there."""

    packs: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]
    """Tokens of every document."""
    limit: int
    """Positions of a pack."""

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def padding(self) -> int:
        """Positions that hold no token, over all packs."""
        return len(self.packs) * self.limit - self.tokens

    @property
    def padding_share(self) -> float:
        positions = len(self.packs) * self.limit
        return self.padding / positions if positions else 0.0

    def document_ids(self, pack: int) -> NDArray[np.int64]:
        """``[limit]``: the document of each position of a pack, ``PADDING`` behind the last one."""
        documents = self.packs[pack]
        ids_L = np.full(self.limit, PADDING, dtype=np.int64)
        filled = np.repeat(documents, [self.lengths[d] for d in documents])
        ids_L[: len(filled)] = filled
        return ids_L

    def positions(self, pack: int) -> NDArray[np.int64]:
        """``[limit]``: positions that begin at 0 in each document; 0 in the padding."""
        parts = [np.arange(self.lengths[d]) for d in self.packs[pack]]
        used = sum(len(part) for part in parts)
        return np.concatenate([*parts, np.zeros(self.limit - used, dtype=np.int64)]).astype(np.int64)

    def starts(self, pack: int) -> tuple[int, ...]:
        """Where each document of a pack begins, and where the last one ends: cumulative lengths."""
        return tuple(int(n) for n in np.cumsum([0, *(self.lengths[d] for d in self.packs[pack])]))


def pack_documents(lengths: Sequence[int], *, limit: int) -> Packing:
    """Pack documents of ``lengths`` tokens into packs of ``limit`` positions.

    Equal lengths go in input order, equal packs in the order they were opened, so the same lengths give the same
    packs. Raises :class:`DataError` for documents that are empty or longer than ``limit``.
    """
    wrong = [(i, n) for i, n in enumerate(lengths) if not 0 < n <= limit]
    if wrong:
        first = ", ".join(f"document {i} has {n}" for i, n in wrong[:5])
        raise DataError(
            f"{len(wrong)} of {len(lengths)} documents do not fit a pack: expected 1 to {limit} tokens, {first}; "
            "cut or window them first, or raise the limit"
        )
    packs: list[list[int]] = []
    rooms: list[int] = []  # distinct free lengths of packs, increasing; at most `limit` of them
    with_room: dict[int, deque[int]] = {}
    for document in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[document]
        place = bisect_left(rooms, length)
        if place == len(rooms):
            pack, room = len(packs), limit
            packs.append([])
        else:
            room = rooms[place]
            pack = with_room[room].popleft()
            if not with_room[room]:
                del with_room[room], rooms[place]
        packs[pack].append(document)
        left = room - length
        if left:
            if left not in with_room:
                insort(rooms, left)
                with_room[left] = deque()
            with_room[left].append(pack)
    return Packing(packs=tuple(map(tuple, packs)), lengths=tuple(lengths), limit=limit)


def count_packs(lengths: Mapping[int, int], *, limit: int) -> int:
    """How many packs :func:`pack_documents` makes of ``lengths[n]`` documents of ``n`` tokens, for each ``n``.

    Its cost depends on the number of distinct lengths, not on that of documents. Raises :class:`DataError` for
    documents that are empty or longer than ``limit``.
    """
    wrong = sorted(n for n, count in lengths.items() if count and not 0 < n <= limit)
    if wrong:
        raise DataError(f"documents of {wrong[:5]} tokens do not fit a pack: expected 1 to {limit} tokens")
    packs = 0
    rooms: list[int] = []  # distinct free lengths of packs, increasing
    with_room: Counter[int] = Counter()

    def put(count: int, left: int) -> None:
        if count and left:
            if not with_room[left]:
                insort(rooms, left)
            with_room[left] += count

    for length in sorted((n for n, count in lengths.items() if count), reverse=True):
        waiting = lengths[length]
        while waiting:
            place = bisect_left(rooms, length)
            fresh = place == len(rooms)
            room = limit if fresh else rooms[place]
            # A pack that takes a document is then the fullest with room for the next, until it has none.
            each = room // length
            needed = -(-waiting // each)
            used = needed if fresh else min(needed, with_room[room])
            placed = min(waiting, used * each)
            full, rest = divmod(placed, each)
            if fresh:
                packs += used
            else:
                with_room[room] -= used
                if not with_room[room]:
                    del rooms[place]
            put(full, room - each * length)
            put(int(rest > 0), room - rest * length)
            waiting -= placed
    return packs


def padding_metrics(lengths: Mapping[int, int], *, limit: int) -> dict[str, float]:
    """Packs of ``limit`` positions for these documents (as for :func:`count_packs`), and their share of padding."""
    packs = count_packs(lengths, limit=limit)
    padding = packs * limit - sum(length * count for length, count in lengths.items())
    return {"length": limit, "packs": packs, "padding_share": padding / (packs * limit) if packs else 0.0}
