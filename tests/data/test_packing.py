"""Packing: every document once and whole, no pack above the limit, near the fewest packs possible."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specflow.data.packing import PADDING, count_packs, pack_documents, padding_metrics
from specflow.data.quarantine import DataError

cases = st.integers(1, 40).flatmap(
    lambda limit: st.tuples(st.lists(st.integers(1, limit), max_size=60), st.just(limit))
)


def fewest_packs(lengths: tuple[int, ...], limit: int) -> int:
    """By trying every way to put each document, the longest first, into an open pack or a new one."""
    best = len(lengths)

    def place(rest: tuple[int, ...], rooms: tuple[int, ...]) -> None:
        nonlocal best
        if len(rooms) >= best:
            return
        if not rest:
            best = len(rooms)
            return
        for i, room in enumerate(rooms):
            if room >= rest[0] and room not in rooms[:i]:
                place(rest[1:], (*rooms[:i], room - rest[0], *rooms[i + 1 :]))
        place(rest[1:], (*rooms, limit - rest[0]))

    place(tuple(sorted(lengths, reverse=True)), ())
    return best


def slow_best_fit(lengths: list[int], limit: int) -> list[list[int]]:
    """The rule word by word: the fullest pack with room, the one opened first among equals."""
    packs: list[list[int]] = []
    for document in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        rooms = [limit - sum(lengths[d] for d in pack) for pack in packs]
        fitting = [p for p, room in enumerate(rooms) if room >= lengths[document]]
        if fitting:
            packs[min(fitting, key=lambda p: rooms[p])].append(document)
        else:
            packs.append([document])
    return packs


@given(cases)
def test_every_document_lies_whole_in_one_pack(case: tuple[list[int], int]) -> None:
    lengths, limit = case
    packing = pack_documents(lengths, limit=limit)
    assert sorted(d for pack in packing.packs for d in pack) == list(range(len(lengths)))
    padding = 0
    for p, pack in enumerate(packing.packs):
        ids, positions, starts = packing.document_ids(p), packing.positions(p), packing.starts(p)
        assert len(ids) == len(positions) == limit
        assert starts[-1] == sum(lengths[d] for d in pack) <= limit
        for d, start, end in zip(pack, starts, starts[1:], strict=False):
            assert ids[start:end].tolist() == [d] * lengths[d]
            assert positions[start:end].tolist() == list(range(lengths[d]))
        assert (ids[starts[-1] :] == PADDING).all()
        padding += int((ids == PADDING).sum())
    assert packing.padding == padding
    positions_in_all = len(packing.packs) * limit
    assert packing.padding_share == (padding / positions_in_all if positions_in_all else 0.0)


@given(cases)
def test_it_is_the_best_fit_rule(case: tuple[list[int], int]) -> None:
    """Free lengths are the rule's; among equal ones, any pack is as good (here: whose room arose first)."""
    lengths, limit = case
    ours, theirs = pack_documents(lengths, limit=limit).packs, slow_best_fit(lengths, limit)
    assert len(ours) == len(theirs)
    assert sorted(sum(lengths[d] for d in p) for p in ours) == sorted(sum(lengths[d] for d in p) for p in theirs)


@given(st.integers(2, 20).flatmap(lambda limit: st.tuples(st.lists(st.integers(1, limit), max_size=9), st.just(limit))))
def test_at_most_eleven_ninths_of_the_fewest_packs(case: tuple[list[int], int]) -> None:
    lengths, limit = case
    found, fewest = len(pack_documents(lengths, limit=limit).packs), fewest_packs(tuple(lengths), limit)
    assert fewest <= found <= Fraction(11, 9) * fewest + Fraction(6, 9)


def test_worked_example() -> None:
    packing = pack_documents([3, 7, 5, 2, 5, 4], limit=10)
    assert packing.packs == ((1, 0), (2, 4), (5, 3))
    assert (packing.tokens, packing.padding, packing.padding_share) == (26, 4, 4 / 30)
    assert packing.document_ids(2).tolist() == [5, 5, 5, 5, 3, 3, -1, -1, -1, -1]
    assert packing.starts(0) == (0, 7, 10)


@given(cases)
def test_packs_are_counted_by_length_as_they_are_made(case: tuple[list[int], int]) -> None:
    lengths, limit = case
    made = pack_documents(lengths, limit=limit)
    assert count_packs(Counter(lengths), limit=limit) == len(made.packs)
    found = padding_metrics(Counter(lengths), limit=limit)
    assert found == {"length": limit, "packs": len(made.packs), "padding_share": pytest.approx(made.padding_share)}


def test_counting_packs_of_many_documents() -> None:
    """Six of 3 tokens in a pack of 20 leave room for two of 1."""
    assert count_packs({3: 6_000_000, 1: 2_000_000}, limit=20) == 1_000_000
    assert padding_metrics({3: 6_000_000, 1: 1_000_000}, limit=20)["padding_share"] == pytest.approx(0.05)
    with pytest.raises(DataError, match=r"documents of \[0, 21\] tokens do not fit a pack: expected 1 to 20"):
        count_packs({3: 1, 21: 2, 0: 1, 22: 0}, limit=20)


def test_typical_lengths_leave_hardly_any_padding() -> None:
    lengths = np.clip(np.random.default_rng(0).lognormal(6.0, 0.8, 20_000).astype(int), 1, 4096).tolist()
    packing = pack_documents(lengths, limit=4096)
    assert packing.padding_share < 0.002
    assert pack_documents(lengths, limit=4096) == packing


@pytest.mark.parametrize("lengths", [[1, 11, 2, 0], [-1]])
def test_what_does_not_fit_is_refused_with_its_length(lengths: list[int]) -> None:
    with pytest.raises(DataError, match="do not fit a pack: expected 1 to 10 tokens") as caught:
        pack_documents(lengths, limit=10)
    assert all(f"document {i} has {n}" in str(caught.value) for i, n in enumerate(lengths) if not 0 < n <= 10)


def test_no_documents_are_no_packs() -> None:
    packing = pack_documents([], limit=10)
    assert (packing.packs, packing.padding_share) == ((), 0.0)
