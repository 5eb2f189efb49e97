"""Any history of passes, commits, rewinds and copies equals a recomputation of what is committed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specflow.targets.target import Target
from specflow.targets.tiny import make_tiny_target
from tests.targets.model_zoo import make_model

CAPACITY = 40


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(make_tiny_target(tmp_path_factory.mktemp("tiny"), 0), threads=1)


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(make_model(tmp_path_factory.mktemp("mistral"), "mistral"), threads=1)


def recomputed(target: Target, ids: list[int]) -> torch.Tensor:
    return target.forward(torch.tensor([ids]), target.new_cache(1, len(ids))).last_hidden_BTH[0]


def check_history(target: Target, data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, 3))
    cache = target.new_cache(batch, CAPACITY)
    texts: list[list[int]] = [[] for _ in range(batch)]
    for _ in range(data.draw(st.integers(1, 5))):
        rows = data.draw(st.integers(1, 6))
        seed = data.draw(st.integers(0, 999))
        ids = torch.randint(0, 290, (batch, rows), generator=torch.Generator().manual_seed(seed))
        hidden = target.forward(ids, cache).last_hidden_BTH
        for b in range(batch):
            expected = recomputed(target, texts[b] + ids[b].tolist())[-rows:]
            torch.testing.assert_close(hidden[b], expected, rtol=1e-4, atol=1e-4)
        counts = [data.draw(st.integers(0, rows)) for _ in range(batch)]
        cache.commit(counts)
        for b, count in enumerate(counts):
            texts[b] += ids[b, :count].tolist()
        action = data.draw(st.sampled_from(["none", "rewind", "copy"]))
        if action == "rewind":
            b = data.draw(st.integers(0, batch - 1))
            length = data.draw(st.integers(0, len(texts[b])))
            cache.rewind(b, length)
            texts[b] = texts[b][:length]
        elif action == "copy" and batch > 1:
            source, destination = data.draw(st.permutations(range(batch)))[:2]
            length = data.draw(st.integers(0, len(texts[source])))
            cache.copy(source=source, destination=destination, length=length)
            texts[destination] = texts[source][:length]
        assert cache.committed_B.tolist() == [len(text) for text in texts]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_history_equals_recomputation(target: Target, data: st.DataObject) -> None:
    check_history(target, data)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_history_with_sliding_window(sliding: Target, data: st.DataObject) -> None:
    check_history(sliding, data)


def test_rejected_rows_leave_no_trace(target: Target) -> None:
    """Bit for bit: a pass after a rejected suffix equals the pass without it."""
    prompt, rejected, following = torch.arange(10, 20)[None], torch.arange(200, 206)[None], torch.arange(30, 33)[None]
    results = []
    for suffix in (None, rejected):
        cache = target.new_cache(1, CAPACITY)
        target.forward(prompt, cache)
        cache.commit(10)
        if suffix is not None:
            target.forward(suffix, cache)
            cache.commit(0)
        results.append(target.forward(following, cache).last_hidden_BTH)
    assert torch.equal(results[0], results[1])


def test_view_shares_buffers_and_lengths(target: Target) -> None:
    cache = target.new_cache(3, CAPACITY)
    row = cache.rows(1, 1)
    target.forward(torch.tensor([[5, 6, 7]]), row)
    row.commit(3)
    assert cache.committed_B.tolist() == [0, 3, 0]
    ids = torch.tensor([[9], [8], [9]])
    hidden = target.forward(ids, cache).last_hidden_BTH
    torch.testing.assert_close(hidden[1], recomputed(target, [5, 6, 7, 8])[-1:], rtol=1e-4, atol=1e-4)


def test_misuse_is_refused(target: Target) -> None:
    cache = target.new_cache(1, 4)
    with pytest.raises(ValueError, match="do not fit a cache of 4"):
        target.forward(torch.zeros(1, 5, dtype=torch.int64), cache)
    target.forward(torch.zeros(1, 3, dtype=torch.int64), cache)
    with pytest.raises(ValueError, match="cannot commit"):
        cache.commit(4)
    target.forward(torch.zeros(1, 3, dtype=torch.int64), cache)
    cache.commit(2)
    with pytest.raises(RuntimeError, match="without a pass"):
        cache.commit(1)
    with pytest.raises(ValueError, match="rewind"):
        cache.rewind(0, 3)
