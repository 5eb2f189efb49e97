"""Dynamic trees against brute force over a small vocabulary; closure, ties, order, the chain as the special case."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specflow.decoding.trees import Grown, Tree, TreeShape, draft_tree, grow, keep_best, likeliest

torch.set_num_threads(1)


class Model:
    """log q after a path is looked up by the path; few distinct values, so that ties are frequent.

    Checks what it is asked: parents exist, and are numbered as they were appended.
    """

    def __init__(self, vocab: int, *, seed: int, values: int = 4, forbidden: float = 0.0) -> None:
        self.vocab, self.seed, self.values, self.forbidden = vocab, seed, values, forbidden
        self.paths: list[tuple[int, ...]] = []

    def log_q(self, path: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed, path)) % (1 << 62))
        weights = 2.0 ** torch.randint(0, self.values, (self.vocab,), generator=generator)
        weights[torch.rand(self.vocab, generator=generator) < self.forbidden] = 0.0
        return weights.log2() - 8.0  # at most -5: no need to sum to 1, and sums are exact

    def begin_tree(self, anchor: int) -> Tensor:
        self.paths = [()]
        return self.log_q(())

    def expand(self, tokens_b: Tensor, parents_b: Tensor) -> Tensor:
        assert parents_b.max() < len(self.paths)
        new = [(*self.paths[p], t) for t, p in zip(tokens_b.tolist(), parents_b.tolist(), strict=True)]
        self.paths += new
        return torch.stack([self.log_q(path) for path in new])


def ranking(row: list[float]) -> list[int]:
    """Ids by value, of equal ones the lowest first."""
    return sorted(range(len(row)), key=lambda token: (-row[token], token))


def by_definition(model: Model, shape: TreeShape) -> list[tuple[tuple[int, ...], float]]:
    """Paths of the kept nodes with their scores, in order: METHODS 3 with whole sorts and nothing shared."""
    frontier: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    generated: list[tuple[tuple[int, ...], float]] = []
    for _ in range(shape.steps):
        level = []
        for path, score in frontier:
            row = model.log_q(path).tolist()
            ranked = ranking(row)
            level += [((*path, t), score + row[t]) for t in ranked[: shape.topk] if row[t] > float("-inf")]
        generated += level
        frontier = sorted(level, key=lambda node: -node[1])[: shape.topk]  # sorts of Python are stable
    best = sorted(generated, key=lambda node: -node[1])[: shape.num_draft_tokens - 1]
    return [node for node in generated if node in best]


def paths_of(tree: Tree) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*paths[parent], token))
    return paths[1:]


@st.composite
def shapes(draw: st.DrawFn) -> TreeShape:
    steps, topk = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    most = topk + (steps - 1) * topk**2
    return TreeShape(steps=steps, topk=topk, num_draft_tokens=draw(st.integers(2, most + 1)))


@settings(max_examples=200, deadline=None)
@given(
    shape=shapes(),
    vocab=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    values=st.sampled_from([1, 2, 4]),
    forbidden=st.sampled_from([0.0, 0.3, 0.8]),
)
def test_equals_the_definition(shape: TreeShape, vocab: int, seed: int, values: int, forbidden: float) -> None:
    model = Model(vocab, seed=seed, values=values, forbidden=forbidden)
    tree = draft_tree(model, 0, shape)
    assert paths_of(tree) == [path for path, _ in by_definition(model, shape)]
    # Closure: every prefix of a kept path is kept; depth is at most the number of steps.
    kept = set(paths_of(tree))
    assert all(path[:-1] in kept or len(path) == 1 for path in kept)
    assert max(tree.depths) <= shape.steps
    assert tree.depths[1:] == [len(path) for path in paths_of(tree)]
    assert len(kept) == len(tree.tokens) <= shape.num_draft_tokens - 1
    assert len(model.paths) - 1 <= shape.expanded


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 5))
def test_topk_1_is_the_greedy_chain(seed: int, steps: int) -> None:
    model, path = Model(5, seed=seed), list[int]()
    for _ in range(steps):
        path.append(int(model.log_q(tuple(path)).argmax()))
    tree = draft_tree(model, 0, TreeShape(steps=steps, topk=1, num_draft_tokens=steps + 1))
    assert (tree.tokens, tree.parents) == (path, list(range(steps)))
    assert tree == Tree(tokens=path, parents=list(range(steps)))
    assert list(Tree.chain(path).parents) == tree.parents


@settings(max_examples=100, deadline=None)
@given(data=st.data(), nodes=st.integers(1, 25))
def test_no_child_is_kept_without_its_parent(data: st.DataObject, nodes: int) -> None:
    """Any nodes whose scores never rise along a path, most of them equal."""
    grown = Grown()
    for i in range(nodes):
        parent = data.draw(st.integers(-1, i - 1))
        grown.tokens.append(i)
        grown.parents.append(parent)
        grown.scores.append(
            (grown.scores[parent] if parent >= 0 else 0.0) - data.draw(st.sampled_from([0.0, 0.0, 1.0]))
        )
    for count in range(1, nodes + 1):
        tree = keep_best(grown, count)
        kept = set(tree.tokens)
        assert len(kept) == count
        assert all(grown.parents[node] in kept or grown.parents[node] == -1 for node in kept)
        assert list(tree.tokens) == sorted(kept), "in the order of creation"
        worst = min(grown.scores[node] for node in kept)
        left = [node for node in range(nodes) if node not in kept]
        assert all(grown.scores[node] <= worst for node in left)
        assert all(
            node > max(k for k in kept if grown.scores[k] == worst) for node in left if grown.scores[node] == worst
        )


def test_order_of_the_serving_engine() -> None:
    """Levels one after another; in a level by the rank of the parent, then of the child; children ascend."""
    table = {(): [0.5, 0.3, 0.2], (0,): [0.1, 0.6, 0.3], (1,): [0.9, 0.05, 0.05]}

    class Fixed(Model):
        def log_q(self, path: tuple[int, ...]) -> Tensor:
            return torch.tensor(table.get(path, [1 / 3] * 3)).log()

    # Generated: 0, 1 | 0-1 (.30), 0-2 (.15), 1-0 (.27), 1-1 (.015): the beam is 0-1, 1-0.
    tree = draft_tree(Fixed(3, seed=0), 0, TreeShape(steps=2, topk=2, num_draft_tokens=6))
    assert paths_of(tree) == [(0,), (1,), (0, 1), (0, 2), (1, 0)]
    assert tree.children == [[1, 2], [3, 4], [5], [], [], []]
    *_, grown = grow(Fixed(3, seed=0), 0, steps=3, topk=2)
    assert grown.parents == [-1, -1, 0, 0, 1, 1, 2, 2, 4, 4]


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.lists(st.sampled_from([0.0, -1.0, -2.0, float("-inf")]), min_size=4, max_size=4), min_size=1),
    topk=st.integers(1, 6),
)
def test_equal_q_are_ordered_by_id(rows: list[list[float]], topk: int) -> None:
    for row, found in zip(rows, likeliest(torch.tensor(rows), topk), strict=True):
        ranked = ranking(row)[:topk]
        assert found == [(token, row[token]) for token in ranked if row[token] > float("-inf")]


def test_bad_input_is_refused() -> None:
    for steps, topk, size in itertools.product((0, 1, 2), (0, 1, 2), (0, 1, 2, 7, 8)):
        fits = steps > 0 and topk > 0 and 2 <= size <= 1 + topk + (steps - 1) * topk**2
        if not fits:
            with pytest.raises(ValueError, match="expected"):
                TreeShape(steps=steps, topk=topk, num_draft_tokens=size)
    with pytest.raises(ValueError, match="siblings that differ"):
        Tree(tokens=[3, 3], parents=[0, 0])
    with pytest.raises(ValueError, match="parents before their children"):
        Tree(tokens=[3, 4], parents=[2, 0])
    with pytest.raises(ValueError, match="one that is not"):
        likeliest(torch.tensor([[0.0, float("nan"), -1.0]]), 2)
