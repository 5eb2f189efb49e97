"""A pass over trees equals the passes over every path; a committed path equals its recomputation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specflow.targets.target import Target
from specflow.targets.tiny import make_tiny_target
from specflow.targets.tree_attention import related
from tests.targets.model_zoo import make_model

CAPACITY = 48
LAYERS = (0, 2)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(make_tiny_target(tmp_path_factory.mktemp("tiny"), 0), threads=1)


@pytest.fixture(scope="module", params=["mistral", "gemma2"])
def sliding(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    """Windows that end within the prompt or the tree; fused attention, and attention with a soft cap."""
    return Target.load(make_model(tmp_path_factory.mktemp(request.param), request.param), threads=1)


def path_to(parents: list[int], row: int) -> list[int]:
    return [*(path_to(parents, parents[row]) if parents[row] >= 0 else []), row]


def recomputed(target: Target, ids: list[int], layers: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor | None]:
    found = target.forward(torch.tensor([ids]), target.new_cache(1, len(ids)), layer_ids=layers)
    return found.last_hidden_BTH[0], None if found.features_BTKH is None else found.features_BTKH[0]


def check_trees(target: Target, data: st.DataObject) -> None:
    batch, rows = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 20))
    layers = tuple(k for k in LAYERS if k < target.num_layers - 1)
    cache, texts = target.new_cache(batch, CAPACITY), list[list[int]]()
    lengths = [data.draw(st.integers(0, 12)) for _ in range(batch)]
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    vocab = min(target.vocab_size, 60)
    if max(lengths):
        ids = torch.randint(0, vocab, (batch, max(lengths)), generator=generator)
        target.forward(ids, cache)
        cache.commit(lengths)
        texts = [ids[b, : lengths[b]].tolist() for b in range(batch)]
    else:
        texts = [[] for _ in range(batch)]
    parents = [[data.draw(st.integers(-1, row - 1)) for row in range(rows)] for _ in range(batch)]
    ids = torch.randint(0, vocab, (batch, rows), generator=generator)
    output = target.forward(ids, cache, layer_ids=layers, parents_BT=torch.tensor(parents))
    features = output.features_BTKH
    for b in range(batch):
        for row in range(rows):
            path = path_to(parents[b], row)
            hidden, kept = recomputed(target, texts[b] + ids[b, path].tolist(), layers)
            torch.testing.assert_close(output.last_hidden_BTH[b, row], hidden[-1], rtol=1e-4, atol=1e-4)
            if features is not None and kept is not None:
                torch.testing.assert_close(features[b, row], kept[-1], rtol=1e-4, atol=1e-4)
    ends = [data.draw(st.integers(-1, rows - 1)) for _ in range(batch)]
    paths = [path_to(parents[b], end) if end >= 0 else [] for b, end in enumerate(ends)]
    cache.commit_paths(paths)
    assert cache.committed_B.tolist() == [len(t) + len(p) for t, p in zip(texts, paths, strict=True)]
    following = torch.randint(0, vocab, (batch, 3), generator=generator)
    hidden_BTH = target.forward(following, cache).last_hidden_BTH
    for b in range(batch):
        whole = [*texts[b], *ids[b, paths[b]].tolist(), *following[b].tolist()]
        torch.testing.assert_close(hidden_BTH[b], recomputed(target, whole, ())[0][-3:], rtol=1e-4, atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_trees_equal_their_paths(target: Target, data: st.DataObject) -> None:
    check_trees(target, data)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_trees_with_sliding_windows(sliding: Target, data: st.DataObject) -> None:
    check_trees(sliding, data)


def test_a_chain_of_rows_is_an_ordinary_pass(target: Target) -> None:
    caches = [target.new_cache(2, 20) for _ in range(2)]
    prompt, ids = torch.arange(12).view(2, 6), torch.arange(20, 30).view(2, 5)
    found = []
    for cache, parents in zip(caches, (None, torch.arange(-1, 4).expand(2, -1)), strict=True):
        target.forward(prompt, cache)
        cache.commit([6, 4])
        found.append(target.forward(ids, cache, parents_BT=parents).last_hidden_BTH)
    assert torch.equal(*found)
    caches[0].commit([3, 5])
    caches[1].commit_paths([[0, 1, 2], [0, 1, 2, 3, 4]])
    assert caches[0].committed_B.tolist() == caches[1].committed_B.tolist()


def test_moving_rows_keeps_the_other_requests(target: Target) -> None:
    """Bit for bit: what was committed before, and by a request whose path needs no move."""
    cache = target.new_cache(3, 20)
    target.forward(torch.arange(15).view(3, 5), cache)
    cache.commit([5, 2, 4])
    before = {k: v.clone() for k, v in cache._storage.keys.items()}
    parents = torch.tensor([[-1, 0, 0, 2], [-1, 0, 1, 2], [-1, 0, 0, 0]])
    target.forward(torch.arange(40, 52).view(3, 4), cache, parents_BT=parents)
    written = {k: v.clone() for k, v in cache._storage.keys.items()}
    cache.commit_paths([[0, 2, 3], [0, 1], [0, 3]])
    for layer, keys in cache._storage.keys.items():
        for b, length in enumerate([5, 2, 4]):
            assert torch.equal(keys[b, :, :length], before[layer][b, :, :length])
        assert torch.equal(keys[0, :, 6:8], written[layer][0, :, 7:9])
        assert torch.equal(keys[1], written[layer][1])
        assert torch.equal(keys[2, :, 5], written[layer][2, :, 7])


def test_related_rows() -> None:
    parents = torch.tensor([[-1, 0, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 3, -1, 5]])
    found = related(parents)
    for b, row in ((b, row) for b in range(2) for row in range(7)):
        expected = path_to(parents[b].tolist(), row)
        assert found[b, row].nonzero().flatten().tolist() == expected


def test_misuse_is_refused(target: Target) -> None:
    cache, ids = target.new_cache(1, 10), torch.tensor([[1, 2, 3]])
    with pytest.raises(ValueError, match=r"not before them: \[\[0, 1\]\]"):
        target.forward(ids, cache, parents_BT=torch.tensor([[-1, 1, 0]]))
    target.forward(ids, cache, parents_BT=torch.tensor([[-1, 0, 0]]))
    for wrong in ([[0, 1, 2]], [[1]], [[0, 3]], [[0, 2, 1]]):
        with pytest.raises(ValueError, match="are no path"):
            cache.commit_paths(wrong)
    with pytest.raises(ValueError, match="paths of 2 requests"):
        cache.commit_paths([[0], [0]])
    cache.commit_paths([[0, 2]])
    with pytest.raises(RuntimeError, match="without a pass"):
        cache.commit_paths([[0]])
