from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from specflow.features.plan import MIN_GROUP, MIN_PREFIX, PASS_SHARE, Batch, computed_tokens, plan_shards

ROW = st.builds(
    lambda head, middle, tail: [head] * 40 + [middle] * 35 + tail,
    st.integers(0, 1),
    st.integers(0, 2),
    st.lists(st.integers(0, 3), min_size=1, max_size=9),
)
SHORT = st.lists(st.integers(0, 3), min_size=1, max_size=20)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.lists(ROW | SHORT, min_size=1, max_size=24), st.integers(16, 200), st.integers(200, 600))
def test_every_document_once_within_the_limits(documents: list[list[int]], batch: int, shard: int) -> None:
    shards = plan_shards(documents, batch_tokens=batch, shard_tokens=shard)
    batches = [b for s in shards for b in s]
    assert sorted(i for b in batches for i in b.documents) == list(range(len(documents)))
    for b in batches:
        prefixes = {tuple(documents[i][: b.prefix]) for i in b.documents}
        assert len(prefixes) == 1
        rests = [len(documents[i]) - b.prefix for i in b.documents]
        assert min(rests) >= 1
        assert len(rests) == 1 or max(rests) * len(rests) <= batch
        assert b.prefix == 0 or b.prefix >= MIN_PREFIX
    for s in shards:
        held = [i for b in s for i in b.documents]
        assert len(held) == 1 or sum(len(documents[i]) for i in held) <= shard
    plain = plan_shards(documents, batch_tokens=batch, shard_tokens=shard, share_prefixes=False)
    assert all(b.prefix == 0 for s in plain for b in s)


def test_the_better_of_one_long_and_several_longer_prefixes() -> None:
    system = [1] * 50
    one = [[*system, 2, *[3] * 60, n] for n in range(6)]
    two = [[*system, 4, *[5] * 60, n] for n in range(6)]
    shards = plan_shards([*one, *two, [9, 9]], batch_tokens=1000, shard_tokens=5000)
    assert [b for s in shards for b in s] == [
        Batch(111, (0, 1, 2, 3, 4, 5)),
        Batch(111, (6, 7, 8, 9, 10, 11)),
        Batch(0, (12,)),
    ]
    assert computed_tokens([*one, *two, [9, 9]], shards) == (2 * 111 + 12 + 2, 0)


def test_few_or_short_prefixes_are_not_shared() -> None:
    few = [[1] * 50 + [n] for n in range(MIN_GROUP - 1)]
    short = [[2] * (MIN_PREFIX - 1) + [n] for n in range(9)]
    shards = plan_shards(few + short, batch_tokens=1000, shard_tokens=5000)
    assert {b.prefix for s in shards for b in s} == {0}


def test_padding_is_counted() -> None:
    documents = [[1] * 50, [2] * 49, [3] * 20]
    shards = plan_shards(documents, batch_tokens=100, shard_tokens=1000)
    assert shards == [[Batch(0, (0, 1)), Batch(0, (2,))]]
    assert computed_tokens(documents, shards) == (120, 1)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=9), st.integers(64, 300), st.integers(80, 400))
def test_no_other_way_to_cut_costs_less(lengths: list[int], batch_tokens: int, shard_tokens: int) -> None:
    """Against all ways to cut the documents, longest first, into batches within the limits."""
    documents = [[n] * length for n, length in enumerate(lengths)]
    order = sorted(lengths, reverse=True)

    def cost(batches: list[list[int]]) -> int | None:
        fits = all(len(b) == 1 or (b[0] * len(b) <= batch_tokens and sum(b) <= shard_tokens) for b in batches)
        return sum(b[0] * len(b) + batch_tokens // PASS_SHARE for b in batches) if fits else None

    ways = []
    for cuts in product((False, True), repeat=len(order) - 1):
        batches = [[order[0]]]
        for length, begins in zip(order[1:], cuts, strict=True):
            if begins:
                batches.append([length])
            else:
                batches[-1].append(length)
        ways.append(cost(batches))
    shards = plan_shards(documents, batch_tokens=batch_tokens, shard_tokens=shard_tokens, share_prefixes=False)
    made = [[len(documents[i]) for i in b.documents] for s in shards for b in s]
    assert cost(made) == min(c for c in ways if c is not None)
