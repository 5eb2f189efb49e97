"""Trees, budgets, ragged rows, committed paths: the kernels against the references, which are exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specflow_kernels.allocate_budget import allocate_budget
from specflow_kernels.allocate_budget.launching import allocate_budget_triton
from specflow_kernels.build_tree import build_tree
from specflow_kernels.build_tree.launching import build_tree_triton
from specflow_kernels.build_tree.operator import make as make_tree
from specflow_kernels.build_tree.reference import build_tree_reference
from specflow_kernels.commit_path import commit_path
from specflow_kernels.commit_path.launching import commit_path_triton
from specflow_kernels.compact_rows import compact_rows, scatter_rows
from specflow_kernels.compact_rows.launching import compact_rows_triton, scatter_rows_triton
from specflow_kernels.verify_tree import verify_tree

from tests.kernels.interpreted.comparing import poisoned

CPU = torch.device("cpu")


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 99), batch=st.integers(1, 2), branches=st.integers(1, 4), levels=st.integers(1, 4),
    share=st.floats(0.0, 1.0), ties=st.booleans(),
)  # fmt: skip
def test_build_tree(seed: int, batch: int, branches: int, levels: int, share: float, ties: bool) -> None:
    torch.manual_seed(seed)
    case = make_tree(CPU, batch=batch, branches=branches, levels=levels, slots=1)
    case["slots"] = 1 + int(share * case["scores_BX"].shape[1])
    if ties:
        case["scores_BX"] = torch.zeros_like(case["scores_BX"])
    with poisoned():
        found = build_tree_triton(**case)
    wanted = build_tree_reference(**case)
    for name, one, other in zip(found._fields, found, wanted, strict=True):
        assert torch.equal(one, other), name


def test_build_tree_by_hand() -> None:
    # Nodes 0, 1 below the anchor; 2, 3 below 0; 4, 5 below 1. Kept with equal scores: the lower numbers.
    tree = build_tree(
        torch.tensor([9]),
        torch.tensor([[-1.0, -2.0, -3.0, -1.5, -2.0, -2.5]]),
        torch.tensor([[10, 11, 12, 13, 14, 15]]),
        torch.tensor([[-1, -1, 0, 0, 1, 1]]),
        slots=5,
        levels=2,
    )
    assert tree.tokens_BD.tolist() == [[9, 10, 11, 13, 14]]
    assert tree.parent_BD.tolist() == [[-1, 0, 0, 1, 2]]
    assert tree.child_BD.tolist() == [[1, 3, 4, -1, -1]]
    assert tree.sibling_BD.tolist() == [[-1, 2, -1, -1, -1]]
    assert tree.depth_BD.tolist() == [[0, 1, 1, 2, 2]]
    assert tree.visible_BDD[0, 4].tolist() == [True, False, True, False, True]


def test_build_tree_refuses_nan() -> None:
    case = make_tree(CPU, batch=2, branches=2, levels=2, slots=4)
    case["scores_BX"][1, 3] = float("nan")
    with poisoned():
        found = build_tree_triton(**case)
    for one, other in zip(found, build_tree_reference(**case), strict=True):
        assert torch.equal(one, other)
    assert found.tokens_BD[1].tolist() == [-1] * 4
    assert int(found.tokens_BD[0].min()) >= 0


def test_tree_is_verified_and_committed() -> None:
    torch.manual_seed(0)
    case = make_tree(CPU, batch=1, branches=2, levels=2, slots=6)
    case["tokens_BX"] = torch.tensor([[1, 2, 3, 4, 5, 6]])
    tree = build_tree(**case)
    target = torch.full((1, 6, 8), 0.0)
    leaf = int((tree.depth_BD == 2).nonzero()[-1, 1])
    way = [int(tree.parent_BD[0, leaf]), leaf]
    target[0, 0, tree.tokens_BD[0, way[0]]] = 1.0
    target[0, way[0], tree.tokens_BD[0, leaf]] = 1.0
    target[0, leaf, 7] = 1.0
    path, accepted, following = verify_tree(
        tree.tokens_BD, tree.child_BD, tree.sibling_BD, target, greedy_B=torch.tensor([True]),
        coins_BD=torch.zeros(1, 7), depth=2,
    )  # fmt: skip
    assert (path.tolist(), accepted.tolist(), following.tolist()) == ([[0, *way]], [2], [7])
    cache = torch.arange(6.0).view(1, 6, 1)
    commit_path(cache, torch.tensor([0]), path)
    assert cache.flatten()[:3].tolist() == [0, *way]


@settings(max_examples=15, deadline=None)
@given(data=st.data(), batch=st.integers(1, 5), proposals=st.integers(1, 5), budget=st.integers(0, 26))
def test_allocate_budget(data: st.DataObject, batch: int, proposals: int, budget: int) -> None:
    value = st.sampled_from([1.0, 1.0, 0.5, 0.5, 0.25, 1e-4, float("nan")])
    rows = data.draw(st.lists(st.lists(value, min_size=proposals, max_size=proposals), min_size=batch, max_size=batch))
    survival = torch.tensor(rows).cumprod(dim=1)
    with poisoned():
        found = allocate_budget_triton(survival, torch.tensor(budget))
    order = sorted(
        (-s, j, r) for r, row in enumerate(survival.tolist()) for j, s in enumerate(row) if s >= 1e-6
    )  # fmt: skip
    expected = [1 + sum(r == b for _, _, r in order[:budget]) for b in range(batch)]
    assert found.tolist() == expected
    assert torch.equal(found, allocate_budget(survival, torch.tensor(budget)))


def test_allocation_of_the_worked_example() -> None:
    survival = torch.tensor([[0.95, 0.9, 0.85], [0.7, 0.3, 0.1]])
    assert allocate_budget(survival, torch.tensor(4)).tolist() == [4, 2]
    with poisoned():
        assert allocate_budget_triton(survival, torch.tensor(4)).tolist() == [4, 2]


@settings(max_examples=12, deadline=None)
@given(
    data=st.data(), size=st.integers(1, 4), width=st.sampled_from([1, 15, 16, 17]), capacity=st.integers(0, 14),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64]),
)  # fmt: skip
def test_compact_and_scatter(data: st.DataObject, size: int, width: int, capacity: int, dtype: torch.dtype) -> None:
    lengths = torch.tensor(data.draw(st.lists(st.integers(0, size), min_size=1, max_size=4)))
    rows = torch.arange(1, lengths.numel() * size * width + 1).reshape(-1, size, width).to(dtype)
    with poisoned():
        out, places = compact_rows_triton(rows, lengths, capacity=capacity)
        back = scatter_rows_triton(out, lengths, size=size)
    expected = [(b, r) for b, length in enumerate(lengths.tolist()) for r in range(length)][:capacity]
    assert places.tolist() == [b * size + r for b, r in expected] + [-1] * (capacity - len(expected))
    for c in range(capacity):
        wanted = rows[expected[c]] if c < len(expected) else torch.zeros_like(rows[0, 0])
        assert torch.equal(out[c], wanted)
    for one, other in zip((out, places), compact_rows(rows, lengths, capacity=capacity), strict=True):
        assert torch.equal(one, other)
    for b, r in ((b, r) for b in range(lengths.numel()) for r in range(size)):
        assert torch.equal(back[b, r], rows[b, r] if (b, r) in expected else torch.zeros_like(rows[0, 0]))
    assert torch.equal(back, scatter_rows(out, lengths, size=size))


@settings(max_examples=12, deadline=None)
@given(data=st.data(), layers=st.integers(1, 3), width=st.sampled_from([1, 15, 16, 17, 33]), places=st.integers(1, 4))
def test_commit_path(data: st.DataObject, layers: int, width: int, places: int) -> None:
    slots, batch = 6, data.draw(st.integers(1, 3))
    paths: list[list[int]] = []
    for _ in range(batch):
        taken = sorted(data.draw(st.sets(st.integers(1, slots - 1), max_size=places - 1)))
        paths.append(([0, *taken] if data.draw(st.booleans()) else []) + [-1] * places)
    path = torch.tensor([p[:places] for p in paths])
    start = torch.arange(batch) * slots + 1
    before = torch.randn(layers, batch * slots + 2, width)
    expected, found, by_reference = before.clone(), before.clone(), before.clone()
    for b in range(batch):
        for i, slot in enumerate(s for s in path[b].tolist() if s >= 0):
            expected[:, 1 + b * slots + i] = before[:, 1 + b * slots + slot]
    commit_path_triton(found, start, path)
    commit_path(by_reference, start, path)
    assert torch.equal(found, expected)
    assert torch.equal(by_reference, expected)


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="9 slots, expected 1 to 7"):
        build_tree(**{**_small_tree(), "slots": 9})
    with pytest.raises(ValueError, match="without dimensions"):
        allocate_budget(torch.ones(1, 1), torch.ones(1))
    with pytest.raises(ValueError, match="as many lengths"):
        compact_rows(torch.ones(2, 1, 1), torch.ones(1), capacity=1)
    with pytest.raises(ValueError, match="each layer to be contiguous"):
        commit_path(torch.ones(1, 4, 4)[:, :, ::2], torch.zeros(1), torch.zeros(1, 1))


def _small_tree() -> dict[str, Any]:
    return make_tree(CPU, batch=1, branches=2, levels=2, slots=3)
