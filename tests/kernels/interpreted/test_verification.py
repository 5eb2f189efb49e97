"""Verification of chains and trees: the kernels against the references, and those against the target's law."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specflow_kernels.accept_greedy.launching import accept_greedy_triton
from specflow_kernels.accept_greedy.reference import accept_greedy_reference
from specflow_kernels.verify_chain import verify_chain
from specflow_kernels.verify_chain.launching import verify_chain_triton
from specflow_kernels.verify_chain.reference import verify_chain_reference
from specflow_kernels.verify_tree import verify_tree
from specflow_kernels.verify_tree.launching import verify_tree_triton
from specflow_kernels.verify_tree.reference import verify_tree_reference
from torch import Tensor

from tests.kernels.interpreted.comparing import poisoned

PARTS = 64


def eighths(generator: torch.Generator, *shape: int) -> Tensor:
    """Distributions of few numbers over a power of two: their sums, in any order, are exact."""
    vocabulary = shape[-1]
    drawn = torch.randint(vocabulary, (*shape[:-1], PARTS), generator=generator)
    return torch.zeros(shape).scatter_add_(-1, drawn, torch.full(drawn.shape, 1.0 / PARTS))


def chain(seed: int, *, batch: int, proposals: int, vocabulary: int, extra: int, drawn: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    target = eighths(generator, batch, proposals + 1 + extra, vocabulary)
    q = eighths(generator, batch, proposals, vocabulary) if drawn else None
    weights = target[:, :proposals] if q is None else q
    draft = torch.multinomial(weights.reshape(-1, vocabulary), 1, generator=generator).view(batch, proposals)
    return {
        "draft_BM": draft,
        "target_BRV": target,
        "greedy_B": torch.randint(2, (batch,), generator=generator).bool(),
        "coins_BR": torch.randint(256, (batch, proposals + 1), generator=generator) / 256,
        "q_BMV": q,
        "judged_B": torch.randint(proposals + 1, (batch,), generator=generator) if extra else None,
    }


def same(kernel: Any, reference: Any, case: dict[str, Any]) -> tuple[Tensor, ...]:
    with poisoned():
        found = kernel(**case)
    wanted = reference(**case)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other), (case, found, wanted)
    return tuple(found)


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 999),
    batch=st.integers(1, 4),
    proposals=st.integers(1, 4),
    vocabulary=st.sampled_from([1, 2, 3, 15, 16, 17, 40]),
    extra=st.integers(0, 1),
    drawn=st.booleans(),
)
def test_chain(seed: int, **sizes: Any) -> None:
    same(verify_chain_triton, verify_chain_reference, chain(seed, **sizes))


def test_chain_over_several_tiles_of_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    from specflow_kernels.verify_chain import launching

    monkeypatch.setattr(launching, "TILE", 16)
    accepted = set()
    for seed in range(12):
        case = chain(seed, batch=3, proposals=2, vocabulary=50, extra=0, drawn=bool(seed % 2))
        if seed % 3 == 0:
            case["coins_BR"][:, :-1] = 0.0
        accepted.update(same(verify_chain_triton, verify_chain_reference, case)[0].tolist())
    assert accepted == {0, 1, 2}


def test_chain_all_rejected_and_all_accepted() -> None:
    p = torch.tensor([[0.0, 0.5, 0.5], [0.25, 0.75, 0.0]])
    case = {
        "draft_BM": torch.tensor([[0], [1]]),
        "target_BRV": p.expand(2, 2, 3),
        "coins_BR": torch.tensor([[0.0, 0.5], [0.25, 0.25]]),
        "q_BMV": torch.tensor([[[0.5, 0.5, 0.0]], [[0.0, 1.0, 0.0]]]),
    }
    found = same(verify_chain_triton, verify_chain_reference, {**case, "greedy_B": torch.tensor([False, False])})
    # p - q is (0, 0, 1/2); after the accepted proposal, p's running sum (1/4, 1) first exceeds 1/4 at token 1.
    assert [t.tolist() for t in found] == [[0, 1], [2, 1]]
    found = same(verify_chain_triton, verify_chain_reference, {**case, "greedy_B": torch.tensor([True, True])})
    assert [t.tolist() for t in found] == [[0, 1], [1, 1]]


def test_chain_where_p_equals_q_draws_from_p() -> None:
    case = {
        "draft_BM": torch.tensor([[2]]),
        "target_BRV": torch.tensor([[[0.5, 0.25, 0.0], [1.0, 0.0, 0.0]]]),
        "greedy_B": torch.tensor([False]),
        "coins_BR": torch.tensor([[0.5, 0.75]]),
        "q_BMV": torch.tensor([[[0.5, 0.25, 0.25]]]),
    }
    assert [t.tolist() for t in same(verify_chain_triton, verify_chain_reference, case)] == [[0], [1]]


def test_chain_of_logits_with_ties_and_infinities_and_nan() -> None:
    infinity, nan = float("inf"), float("nan")
    rows = [[-infinity, 2.0, 2.0], [-infinity, -infinity, -infinity], [1.0, nan, 0.0], [nan, 0.5, 0.5]]
    case = {
        "draft_BM": torch.tensor([[1], [2], [0], [0], [0], [1]]),
        "target_BRV": torch.tensor([rows[:2], rows[:2], [rows[1], rows[2]], [rows[2], rows[0]], rows[2:], rows[2:]]),
        "greedy_B": torch.tensor([True, True, True, True, False, False]),
        "coins_BR": torch.zeros(6, 2),
    }
    found = same(verify_chain_triton, verify_chain_reference, case)
    assert [t.tolist() for t in found] == [[1, 0, -1, -1, -1, -1], [0, 1, -1, -1, -1, -1]]


def test_proposal_that_q_cannot_have_given_is_refused() -> None:
    case = chain(0, batch=1, proposals=1, vocabulary=3, extra=0, drawn=True)
    case["q_BMV"] = torch.nn.functional.one_hot((case["draft_BM"] + 1) % 3, 3).float()
    case["greedy_B"] = torch.tensor([False])
    assert same(verify_chain_triton, verify_chain_reference, case)[0].tolist() == [-1]


@pytest.mark.parametrize("drawn", [True, False])
def test_chain_gives_the_targets_distribution(drawn: bool) -> None:
    """Every coin of a grid that the probabilities divide: the counts are exact."""
    p, q = torch.tensor([0.5, 0.25, 0.25, 0.0]), torch.tensor([0.25, 0.25, 0.0, 0.5])
    grid = 12
    proposals = [(token, Fraction(float(q[token])).limit_denominator(4)) for token in range(4) if q[token] > 0]
    counts: Counter[int] = Counter()
    for token, chance in proposals if drawn else [(0, Fraction(1))]:
        coins = torch.tensor(list(product(range(grid), repeat=2))) / grid
        batch = coins.shape[0]
        accepted, following = verify_chain(
            torch.full((batch, 1), token), p.expand(batch, 2, 4), greedy_B=torch.zeros(batch, dtype=torch.bool),
            coins_BR=coins, q_BMV=q.expand(batch, 1, 4) if drawn else None,
        )  # fmt: skip
        for kept, after in zip(accepted.tolist(), following.tolist(), strict=True):
            counts[token if kept else after] += chance  # type: ignore[assignment]
    assert {v: n / grid**2 for v, n in counts.items()} == {0: Fraction(1, 2), 1: Fraction(1, 4), 2: Fraction(1, 4)}


def tree(seed: int, *, batch: int, slots: int, vocabulary: int, depth: int) -> dict[str, Any]:
    """Random trees whose siblings are distinct, as parents before their children."""
    generator = torch.Generator().manual_seed(seed)
    tokens, child, sibling = (torch.full((batch, slots), -1) for _ in range(3))
    for b in range(batch):
        tokens[b, 0] = 0
        used: dict[int, list[int]] = {}
        for slot in range(1, slots):
            above = int(torch.randint(slot, (1,), generator=generator))
            free = [v for v in range(vocabulary) if v not in [int(tokens[b, s]) for s in used.get(above, [])]]
            if not free:
                continue  # a slot that nothing leads to
            tokens[b, slot] = free[int(torch.randint(len(free), (1,), generator=generator))]
            before = used.setdefault(above, [])
            if before:
                sibling[b, before[-1]] = slot
            else:
                child[b, above] = slot
            before.append(slot)
    return {
        "tokens_BD": tokens.clamp(min=0),
        "child_BD": child,
        "sibling_BD": sibling,
        "target_BDV": eighths(generator, batch, slots, vocabulary),
        "greedy_B": torch.randint(2, (batch,), generator=generator).bool(),
        "coins_BD": torch.randint(256, (batch, slots + 1), generator=generator) / 256,
        "depth": depth,
    }


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 999),
    batch=st.integers(1, 3),
    slots=st.integers(1, 8),
    vocabulary=st.sampled_from([2, 3, 4, 17, 33]),
    depth=st.integers(0, 4),
)
def test_tree(seed: int, **sizes: Any) -> None:
    same(verify_tree_triton, verify_tree_reference, tree(seed, **sizes))


def test_tree_over_several_tiles_reaches_every_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    from specflow_kernels.verify_tree import launching

    monkeypatch.setattr(launching, "TILE", 16)
    accepted = set()
    for seed in range(10):
        case = tree(seed, batch=3, slots=9, vocabulary=3, depth=3)
        case["target_BDV"] = torch.nn.functional.pad(case["target_BDV"], (0, 30))
        accepted.update(same(verify_tree_triton, verify_tree_reference, case)[1].tolist())
    assert accepted >= {0, 1, 2}


def test_tree_with_nan_is_refused() -> None:
    case = tree(0, batch=2, slots=3, vocabulary=4, depth=2)
    case["target_BDV"][1, 0, 3] = float("nan")
    path, accepted, following = same(verify_tree_triton, verify_tree_reference, case)
    assert path[1].tolist() == [-1] * 3
    assert (int(accepted[1]), int(following[1])) == (-1, -1)
    assert int(accepted[0]) >= 0


def test_tree_gives_the_targets_distribution() -> None:
    """The first token, over every coin of a grid, whatever the two children are."""
    p = torch.tensor([0.25, 0.25, 0.0, 0.5])
    grid = 12
    coins = torch.tensor(list(product(range(grid), repeat=2))) / grid
    batch = coins.shape[0]
    whole = torch.zeros(batch, 4)
    whole[:, 0], whole[:, 3] = coins[:, 0], coins[:, 1]
    path, accepted, following = verify_tree(
        torch.tensor([0, 3, 2]).expand(batch, 3), torch.tensor([1, -1, -1]).expand(batch, 3),
        torch.tensor([-1, 2, -1]).expand(batch, 3), p.expand(batch, 3, 4),
        greedy_B=torch.zeros(batch, dtype=torch.bool), coins_BD=whole, depth=1,
    )  # fmt: skip
    first = torch.where(accepted == 0, following, torch.where(path[:, 1] == 1, 3, 2))
    assert torch.bincount(first, minlength=4).tolist() == (p * grid**2).tolist()


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 999), batch=st.integers(0, 5), proposals=st.integers(1, 9), extra=st.integers(0, 3),
    kept=st.integers(0, 9),
)  # fmt: skip
def test_accept_greedy(seed: int, batch: int, proposals: int, extra: int, kept: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    draft = torch.randint(3, (batch, proposals), generator=generator)
    target = torch.randint(3, (batch, proposals + 1 + extra), generator=generator)
    target[:, : min(kept, proposals)] = draft[:, :kept]
    same(accept_greedy_triton, accept_greedy_reference, {"draft_BM": draft, "target_BR": target})


def test_accept_greedy_of_strided_rows() -> None:
    wide = torch.arange(60).reshape(2, 30)
    same(accept_greedy_triton, accept_greedy_reference, {"draft_BM": wide[:, ::3], "target_BR": wide[:, ::2]})
