"""METHODS 9.1: what inference could not have never changes a row, bit for bit; what it has does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specflow.drafters.eagle.forward import with_last_hidden
from specflow.drafters.rollouts import Rollouts, assemble
from specflow.drafters.training import Source
from tests.drafters.eagle3_helpers import source
from tests.drafters.eagle_helpers import hidden_of, network

torch.set_num_threads(1)
Change = Callable[[list[Source]], None]
START, DEPTHS = 15, 4
"""A row of document 0; it reads the token at 16, which is the anchor; depths behind it, later ones of its own."""


def hidden_after(change: Change | None, edit: Callable[[Rollouts], Rollouts] = lambda r: r) -> Tensor:
    """``[L, H]`` of the chain at ``START``, among the chains of every row of two documents; depth 0 is what trains."""
    given = [
        dataclasses.replace(s, token_ids_T=s.token_ids_T.clone(), last_hidden_TH=s.last_hidden_TH.clone())
        for s in (source(1), source(2))
        if s.last_hidden_TH is not None
    ]
    if change:
        change(given)
    batch = assemble([with_last_hidden(s) for s in given], depths=DEPTHS)
    assert batch is not None
    chain = (batch.rollouts.starts_N == START).nonzero().squeeze(1)
    with torch.no_grad():
        return hidden_of(network(num_layers=2), edit(batch.rollouts))[:, chain[0]]


def state(document: int, row: int) -> Change:
    def change(given: list[Source]) -> None:
        states = given[document].last_hidden_TH
        assert states is not None
        states[row] += 5.0

    return change


def token(document: int, row: int) -> Change:
    def change(given: list[Source]) -> None:
        given[document].token_ids_T[row] = (given[document].token_ids_T[row] + 7) % 90

    return change


def feature(document: int, row: int) -> Change:
    def change(given: list[Source]) -> None:
        given[document].features_TKH[row] += 5.0

    return change


FORBIDDEN = {
    "state at the anchor, which the row predicts": state(0, 16),
    "state after the anchor": state(0, 18),
    "token that the last depth predicts": token(0, 20),
    "token after the chain": token(0, 22),
    "other document's state": state(1, 3),
    "other document's token": token(1, 12),
    "captured layers": feature(0, 15),
}
ALLOWED = {
    "state just before the anchor": state(0, 15),
    "first state": state(0, 0),
    "anchor": token(0, 16),
    "a token of the prompt": token(0, 4),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden_input_changes_no_bit(name: str) -> None:
    assert torch.equal(hidden_after(FORBIDDEN[name]), hidden_after(None))


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed_input_changes_every_depth(name: str) -> None:
    assert ((hidden_after(ALLOWED[name]) - hidden_after(None)).abs().amax(dim=1) > 1e-4).all()


@pytest.mark.parametrize("read_at", [1, 2, 3])
def test_a_token_of_the_chain_changes_the_depths_that_read_it(read_at: int) -> None:
    """Depth i reads the token at 16 + i, which the depth before predicts."""
    difference = (hidden_after(token(0, 16 + read_at)) - hidden_after(None)).abs().amax(dim=1)
    assert (difference[:read_at] == 0).all()
    assert (difference[read_at:] > 1e-4).all()


def widened(rollouts: Rollouts) -> Rollouts:
    """A planted leak: every chain sees one more row of its document's context, the one at its anchor."""
    last = rollouts.positions_S.numel() - rollouts.starts_N - 1
    return dataclasses.replace(rollouts, visible_N=rollouts.visible_N + (last > 0))


def test_a_mask_widened_by_one_is_seen() -> None:
    assert not torch.equal(hidden_after(state(0, 16), widened), hidden_after(None, widened))
