"""A pass with as many rows as each request asks for equals the requests' own passes, and so does what follows it."""

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


@pytest.fixture(scope="module", params=["mistral", "gemma2"])
def sliding(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    """Windows that end within the prompt or the rows; fused attention, and attention with a soft cap."""
    return Target.load(make_model(tmp_path_factory.mktemp(request.param), request.param), threads=1)


def check_rows(target: Target, data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, 4))
    layers = tuple(k for k in (0, 2) if k < target.num_layers - 1)
    cache, generator = target.new_cache(batch, CAPACITY), torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    vocab = min(target.vocab_size, 60)
    lengths = [data.draw(st.integers(0, 14)) for _ in range(batch)]
    prompts = torch.randint(0, vocab, (batch, 14), generator=generator)
    target.forward(prompts, cache)
    cache.commit(lengths)
    texts = [prompts[b, : lengths[b]].tolist() for b in range(batch)]
    for _ in range(2):  # the second time behind what the first one committed
        counts = [data.draw(st.integers(1, 9)) for _ in range(batch)]
        ids = [torch.randint(0, vocab, (count,), generator=generator) for count in counts]
        found = target.forward(torch.cat(ids)[None], cache, layer_ids=layers, rows=counts)
        hidden = found.last_hidden_BTH[0].split(counts)
        for b in range(batch):
            whole = torch.tensor([[*texts[b], *ids[b].tolist()]])
            alone = target.forward(whole, target.new_cache(1, whole.shape[1]), layer_ids=layers)
            torch.testing.assert_close(hidden[b], alone.last_hidden_BTH[0, -counts[b] :], rtol=1e-4, atol=1e-4)
            if found.features_BTKH is not None and alone.features_BTKH is not None:
                features = found.features_BTKH[0].split(counts)[b]
                torch.testing.assert_close(features, alone.features_BTKH[0, -counts[b] :], rtol=1e-4, atol=1e-4)
        kept = [data.draw(st.integers(1, count)) for count in counts]
        cache.commit(kept)
        texts = [[*texts[b], *ids[b][: kept[b]].tolist()] for b in range(batch)]
    assert cache.committed_B.tolist() == [len(text) for text in texts]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_rows_equal_the_requests_own(target: Target, data: st.DataObject) -> None:
    check_rows(target, data)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_with_sliding_windows(sliding: Target, data: st.DataObject) -> None:
    check_rows(sliding, data)


def test_more_rows_than_attention_folds(target: Target) -> None:
    cache, ids = target.new_cache(2, 60), torch.arange(44)[None] % 50
    found = target.forward(ids, cache, rows=[4, 40]).last_hidden_BTH[0]
    for rows in (slice(0, 4), slice(4, 44)):
        part = ids[:, rows]
        alone = target.forward(part, target.new_cache(1, part.shape[1])).last_hidden_BTH[0]
        torch.testing.assert_close(found[rows], alone, rtol=1e-4, atol=1e-4)


def test_misuse_is_refused(target: Target) -> None:
    cache, ids = target.new_cache(2, 10), torch.arange(5)[None]
    for rows, said in (([5, 0], "at least one of each"), ([2, 2], r"expected \(1, 4\)"), ([5], "for 2 requests")):
        with pytest.raises(ValueError, match=said):
            target.forward(ids, cache, rows=rows)
    target.forward(ids, cache, rows=[1, 4])
    with pytest.raises(ValueError, match=r"cannot commit 1..2 rows of a pass of \(1, 4\)"):
        cache.commit([2, 1])
    target.forward(ids, cache, rows=[1, 4])
    cache.commit([1, 3])
    with pytest.raises(ValueError, match="12 rows after 3 committed"):
        target.forward(torch.arange(13)[None], cache, rows=[1, 12])
