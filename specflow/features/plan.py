"""Which documents are computed together, and which shard they go to: a pure function of the tokens.

Documents with an equal token prefix have equal features there (attention is causal), so the prefix
is computed once. Documents are grouped so that the most tokens are saved, batched by length where that
pads least, and batches are packed into shards. A batch never spans two shards, so a shard can
be computed again alone and comes out the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

MIN_PREFIX = 32
MIN_GROUP = 4
MAX_DEPTH = 16
PASS_SHARE = 32
"""A pass costs as much as this part of ``batch_tokens`` besides its tokens: fewer passes against less padding."""

Ids: TypeAlias = "list[int] | array[int]"


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents (by index) run in one pass after their first ``prefix`` tokens, which are equal."""

    prefix: int
    documents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Group:
    prefix: int
    documents: tuple[int, ...]

    @property
    def saved(self) -> int:
        return self.prefix * (len(self.documents) - 1)


def plan_shards(
    documents: Sequence[Ids], *, batch_tokens: int, shard_tokens: int, share_prefixes: bool = True
) -> list[list[Batch]]:
    """Batches of each shard. ``batch_tokens`` limits padded tokens of a pass, ``shard_tokens`` a shard.

    A single document may exceed either. Documents must not be empty, and all of one type: they are compared.
    """
    groups = _grouped(documents) if share_prefixes else [_Group(0, tuple(range(len(documents))))]
    shards: list[list[Batch]] = []
    room = 0
    for batch in (b for group in groups for b in _batches(documents, group, batch_tokens, shard_tokens)):
        tokens = sum(len(documents[i]) for i in batch.documents)
        if not shards or tokens > room:
            shards.append([])
            room = shard_tokens
        shards[-1].append(batch)
        room -= tokens
    return shards


def computed_tokens(documents: Sequence[Ids], shards: Sequence[Sequence[Batch]]) -> tuple[int, int]:
    """(tokens run through the target with padding, of which padding), prefixes counted once each."""
    prefixes = {tuple(documents[b.documents[0]][: b.prefix]) for shard in shards for b in shard}
    padded = own = sum(len(p) for p in prefixes)
    for batch in (b for shard in shards for b in shard):
        lengths = [len(documents[i]) - batch.prefix for i in batch.documents]
        padded += max(lengths) * len(lengths)
        own += sum(lengths)
    return padded, padded - own


def _batches(documents: Sequence[Ids], group: _Group, batch_tokens: int, shard_tokens: int) -> Iterator[Batch]:
    """The group cut into batches at the least cost: padded tokens, and a fixed cost of every pass."""
    # Longest first: a cache made for the first batch then fits the next ones.
    order = sorted(group.documents, key=lambda i: (-len(documents[i]), i))
    rests = [len(documents[i]) - group.prefix for i in order]
    costs, ends = [0] * (len(order) + 1), [0] * len(order)
    for start in reversed(range(len(order))):
        held = 0
        for end in range(start + 1, len(order) + 1):
            padded = rests[start] * (end - start)
            held += len(documents[order[end - 1]])
            if end > start + 1 and (padded > batch_tokens or held > shard_tokens):
                break
            cost = padded + batch_tokens // PASS_SHARE + costs[end]
            if end == start + 1 or cost <= costs[start]:
                costs[start], ends[start] = cost, end
    start = 0
    while start < len(order):
        yield Batch(group.prefix, tuple(order[start : ends[start]]))
        start = ends[start]


def _grouped(documents: Sequence[Ids]) -> list[_Group]:
    order = sorted(range(len(documents)), key=lambda i: (documents[i], i))
    groups = _split(documents, order, MAX_DEPTH)
    shared = [g for g in groups if g.prefix]
    rest = tuple(sorted(i for g in groups if not g.prefix for i in g.documents))
    return [*shared, _Group(0, rest)] if rest else shared


def _split(documents: Sequence[Ids], order: list[int], depth: int) -> list[_Group]:
    """Sorted documents as one group, or split where their common prefix ends, whichever saves more."""
    if not order:
        return []
    common = _common(documents[order[0]], documents[order[-1]])
    common = min([common, *(len(documents[i]) - 1 for i in order)])
    whole = [_Group(common if common >= MIN_PREFIX and len(order) >= MIN_GROUP else 0, tuple(order))]
    if len(order) < 2 * MIN_GROUP or depth == 0:
        return whole
    children: dict[int, list[int]] = {}
    for index in order:
        children.setdefault(documents[index][common], []).append(index)
    if len(children) == 1:
        return whole
    parts = [g for child in children.values() for g in _split(documents, child, depth - 1)]
    return parts if sum(g.saved for g in parts) > whole[0].saved else whole


def _common(one: Ids, two: Ids) -> int:
    length = min(len(one), len(two))
    return next((i for i in range(length) if one[i] != two[i]), length)
