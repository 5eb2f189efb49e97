"""Decoding with a DSpark drafter has exactly the target's distribution: all outputs enumerated (METHODS 9.5)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from specflow.decoding.sampling import Sampling
from specflow.drafters.base import Committed, Draw, Proposal
from specflow.drafters.dspark.geometry import HEADS, DSparkGeometry
from specflow.drafters.dspark.network import DSparkNetwork
from specflow.drafters.dspark.proposer import DSparkProposer
from tests.decoding.enumeration import output_distribution, total_variation
from tests.decoding.table_target import TableTarget
from tests.decoding.test_exact_chains import reference, speculative

VOCAB, WIDTH = 3, 8


pytestmark = pytest.mark.usefixtures("remembered_distributions")


class TextProposer(DSparkProposer):
    """The target's features are its tokens; rows of a text are computed once, as thousands of paths ask for them."""

    def begin(self, embedding_VH: Tensor) -> TextProposer:
        self._embedding, self._text, self._known = embedding_VH, list[int](), dict[tuple[int, ...], Tensor]()
        return self

    def reset(self, capacity: int) -> None:
        super().reset(capacity)
        self._text = []

    def extend(self, rows: Committed) -> None:
        self._text += rows.features_TKH.flatten().long().tolist()

    def hidden(self, anchor: int, text_m: Tensor | None = None) -> Tensor:
        key = (*self._text, anchor)
        if key not in self._known:
            ids = torch.tensor(self._text)
            super().reset(len(ids))
            super().extend(Committed(features_TKH=self._embedding[ids].unsqueeze(1), next_ids_T=ids))
            self._known[key] = super().hidden(anchor)
        return self._known[key]


def proposer(head: str, anchor: bool) -> TextProposer:
    torch.manual_seed(5)
    geometry = DSparkGeometry(
        hidden_size=WIDTH,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        intermediate_size=8,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        block_size=2 if anchor else 3,
        layer_ids=(0,),
        vocab_size=VOCAB,
        mask_token_id=2,
        max_position_embeddings=64,
        sample_from_anchor=anchor,
        head=head,
        head_rank=3,
        confidence=True,
    )
    net = DSparkNetwork(geometry)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    embedding, head_VH = torch.randn(VOCAB, WIDTH), 0.5 * torch.randn(VOCAB, WIDTH)
    return TextProposer(net, embed=lambda ids: embedding[ids], head=lambda h: h @ head_VH.T).begin(embedding)


def distance(monkeypatch: pytest.MonkeyPatch, head: str, anchor: bool, **options: Any) -> float:
    target, sampling = TableTarget(VOCAB), Sampling(temperature=1.0, **options)
    made: Any = proposer(head, anchor)
    found = output_distribution(speculative(target, made, sampling), monkeypatch)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    return total_variation(found, reference(target, sampling))


@pytest.mark.parametrize(("head", "anchor"), [("markov", False), ("gated", True), ("rnn", False)])
def test_drawn_proposals(monkeypatch: pytest.MonkeyPatch, head: str, anchor: bool) -> None:
    assert distance(monkeypatch, head, anchor, draft_temperature=0.8) < 1e-12


@pytest.mark.parametrize("head", HEADS)
def test_greedy_proposals_with_filters(monkeypatch: pytest.MonkeyPatch, head: str) -> None:
    assert distance(monkeypatch, head, True, top_k=2, frequency_penalty=0.5) < 1e-12


def test_drawn_proposals_with_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert distance(monkeypatch, "rnn", True, draft_temperature=1.2, top_p=0.8, presence_penalty=0.4) < 1e-12


def test_q_without_the_correction_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = DSparkProposer.sample

    def uncorrected(self: DSparkProposer, anchor: int, draw: Draw) -> Proposal:
        made = sample(self, anchor, draw)
        rows = self.score(self.hidden(anchor))
        assert made.q_mV is not None
        return Proposal(tokens_m=made.tokens_m, q_mV=rows.softmax(1).to(made.q_mV.dtype))

    monkeypatch.setattr(DSparkProposer, "sample", uncorrected)
    assert distance(monkeypatch, "markov", True, draft_temperature=1.0) > 1e-3
