"""The selector's walk has exactly the target's distribution: all outputs enumerated, with the q of the walk.

The same with the softmax of the backbone's own candidates as q, which is what a drafter without the pair scores would
have drawn from, must be seen to be wrong.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from specflow.decoding.sampling import Sampling
from specflow.drafters.base import Committed, Draw, Proposal
from specflow.drafters.dflash2.proposer import DFlash2Proposer
from tests.decoding.enumeration import output_distribution, total_variation
from tests.decoding.table_target import TableTarget
from tests.decoding.test_exact_chains import PROMPT, reference, speculative
from tests.drafters.dflash2_helpers import network2

VOCAB, HIDDEN = 4, 32


pytestmark = pytest.mark.usefixtures("remembered_distributions")


class OverTable(DFlash2Proposer):
    """The real proposer over the table's features, which are the tokens' ids: looked up as vectors."""

    layer_ids = (0,)  # type: ignore[assignment]

    def __init__(self, proposals: int) -> None:
        net = network2(
            3, vocab_size=VOCAB, mask_token_id=VOCAB - 1, selector_top_k=2, layer_ids=[0], block_size=proposals + 1
        ).eval()
        g = torch.Generator().manual_seed(5)
        self._table, head = (torch.randn(VOCAB, HIDDEN, generator=g) for _ in range(2))
        self._rounds: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        self._text: tuple[int, ...] = ()
        super().__init__(net, embed=lambda i: self._table[i], head=lambda h: 0.4 * (h.float() @ head.T))

    def fork(self) -> OverTable:
        other = copy.copy(self)
        other.reset(0)
        return other

    def reset(self, capacity: int) -> None:
        self._text = ()
        super().reset(capacity)

    def extend(self, rows: Committed) -> None:
        ids = rows.features_TKH.flatten().long()
        self._text += tuple(ids.tolist())
        super().extend(Committed(features_TKH=self._table[ids].unsqueeze(1), next_ids_T=rows.next_ids_T))

    def lattice(self, anchor: int) -> tuple[Tensor, Tensor]:
        """A round's, remembered: thousands of enumerated paths ask for a few."""
        key = (*self._text, anchor)
        if key not in self._rounds:
            self._rounds[key] = super().lattice(anchor)
        return self._rounds[key]


SETTINGS = {
    "plain": {"temperature": 1.0},
    "filters": {"temperature": 1.3, "top_k": 3, "top_p": 0.9, "min_p": 0.05},
    "penalties": {"temperature": 1.0, "presence_penalty": 0.5, "frequency_penalty": 0.7, "repetition_penalty": 1.3},
}


def distance(monkeypatch: pytest.MonkeyPatch, sampling: Sampling, *, proposals: int = 2) -> float:
    target, proposer = TableTarget(VOCAB), OverTable(proposals)
    made: Any = proposer
    found = output_distribution(speculative(target, made, sampling), monkeypatch)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    return total_variation(found, reference(target, sampling))


@pytest.mark.parametrize("draft_temperature", [0.0, 0.8, 1.7])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_walk_is_exact(monkeypatch: pytest.MonkeyPatch, name: str, draft_temperature: float) -> None:
    sampling = Sampling(**SETTINGS[name], draft_temperature=draft_temperature)  # type: ignore[arg-type]
    assert distance(monkeypatch, sampling) < 1e-12


def test_the_backbone_s_own_softmax_as_q_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = DFlash2Proposer.sample

    def unary(self: DFlash2Proposer, anchor: int, draw: Draw) -> Proposal:
        made = sample(self, anchor, draw)
        candidates_mK, _ = self.lattice(anchor)
        logits_mV = self.logits(anchor).double()
        q_mV = torch.full_like(logits_mV, float("-inf"))
        q_mV.scatter_(1, candidates_mK, logits_mV.gather(1, candidates_mK))
        return Proposal(tokens_m=made.tokens_m, q_mV=q_mV.softmax(dim=1))

    monkeypatch.setattr(DFlash2Proposer, "sample", unary)
    assert distance(monkeypatch, Sampling(temperature=1.0, draft_temperature=1.0)) > 1e-3


def test_a_q_that_is_left_over_from_the_round_before_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer that is not cleared: tokens that were candidates once keep some mass."""
    sample = DFlash2Proposer.sample
    kept: dict[int, Tensor] = {}

    def dirty(self: DFlash2Proposer, anchor: int, draw: Draw) -> Proposal:
        made = sample(self, anchor, draw)
        assert made.q_mV is not None
        if len(self._text) == len(PROMPT):  # type: ignore[attr-defined]
            kept.clear()  # a new request
        before = kept.get(0, torch.zeros_like(made.q_mV))
        kept[0] = made.q_mV
        stale = torch.where(made.q_mV > 0, made.q_mV, before)
        return Proposal(tokens_m=made.tokens_m, q_mV=stale / stale.sum(dim=1, keepdim=True))

    monkeypatch.setattr(DFlash2Proposer, "sample", dirty)
    assert distance(monkeypatch, Sampling(temperature=1.0, draft_temperature=1.0), proposals=1) > 1e-3
