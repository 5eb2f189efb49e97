"""Greedy acceptance: reference against a loop, kernel against the reference on a GPU; see also ``interpreted``."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specflow_kernels.accept_greedy import accept_greedy

from specflow.decoding.chooser import Chooser
from specflow.decoding.sampling import GREEDY
from specflow.decoding.verification import verify_chains
from specflow.drafters.base import Proposal


def by_loop(draft: list[int], target: list[int]) -> tuple[int, int]:
    accepted = 0
    while accepted < len(draft) and draft[accepted] == target[accepted]:
        accepted += 1
    return accepted, target[accepted]


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    batch, proposals, extra = draw(st.integers(1, 5)), draw(st.integers(1, 9)), draw(st.integers(1, 3))
    token = st.integers(0, 2)  # few tokens, so that long prefixes agree
    drafts = [draw(st.lists(token, min_size=proposals, max_size=proposals)) for _ in range(batch)]
    targets = [draw(st.lists(token, min_size=proposals + extra, max_size=proposals + extra)) for _ in range(batch)]
    return drafts, targets


@settings(max_examples=200, deadline=None)
@given(case=batches())
def test_reference_equals_a_loop(case: tuple[list[list[int]], list[list[int]]]) -> None:
    drafts, targets = case
    accepted_B, bonus_B = accept_greedy(torch.tensor(drafts), torch.tensor(targets))
    found = list(zip(accepted_B.tolist(), bonus_B.tolist(), strict=True))
    assert found == [by_loop(d, t) for d, t in zip(drafts, targets, strict=True)]


def test_ties_go_to_the_lowest_id() -> None:
    logits = torch.tensor([[0.0, 5.0, 5.0], [7.0, 7.0, 7.0], [1.0, 2.0, 2.0]])
    proposals = [Proposal(tokens_m=torch.tensor(tokens)) for tokens in ([1, 0], [2, 0], [1, 1])]
    found = verify_chains(logits.expand(3, -1, -1), proposals, [Chooser(GREEDY) for _ in proposals])
    assert found == [(2, 1), (0, 1), (1, 0)]


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="at least M"):
        accept_greedy(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int64))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_kernel_on_the_device() -> None:
    draft = torch.randint(0, 2, (64, 15), device="cuda")
    target = torch.randint(0, 2, (64, 16), device="cuda")
    found = accept_greedy(draft, target)
    expected = accept_greedy(draft.cpu(), target.cpu())
    assert torch.equal(found[0].cpu(), expected[0])
    assert torch.equal(found[1].cpu(), expected[1])
