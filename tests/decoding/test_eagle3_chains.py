"""Decoding with an EAGLE-3 drafter has exactly the target's distribution: all outputs enumerated (METHODS 9.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from specflow.decoding.sampling import Sampling
from specflow.drafters.base import Committed, Draw, Proposal
from specflow.drafters.eagle3.geometry import Eagle3Geometry
from specflow.drafters.eagle3.network import Eagle3Network
from specflow.drafters.eagle3.proposer import Eagle3Proposer
from tests.decoding.enumeration import output_distribution, total_variation
from tests.decoding.table_target import TableTarget
from tests.decoding.test_exact_chains import reference, speculative

VOCAB, WIDTH = 4, 8
DRAFT_IDS = (0, 2, 3)


pytestmark = pytest.mark.usefixtures("remembered_distributions")


class TextProposer(Eagle3Proposer):
    """The target's features are its tokens; rows are computed once, as thousands of paths ask for them."""

    def begin(self, embedding_VH: Tensor) -> TextProposer:
        self._table, self._text, self._known = embedding_VH, list[int](), dict[tuple[int, ...], Tensor]()
        return self

    def reset(self, capacity: int) -> None:
        super().reset(capacity)
        self._text = []

    def extend(self, rows: Committed) -> None:
        self._text += rows.features_TKH.flatten().long().tolist()
        self._next = int(rows.next_ids_T[-1])

    def _chain(self, anchor: int, choose: Callable[[Tensor, int], int]) -> tuple[Tensor, Tensor]:
        assert anchor == self._next
        tokens: list[int] = []
        for index in range(self.num_proposals):
            tokens.append(choose(self._row((*self._text, anchor), tokens), index))
        return torch.tensor(tokens), torch.zeros(0)

    def _row(self, text: tuple[int, ...], tokens: list[int]) -> Tensor:
        key = (*text, -1, *tokens)
        if key not in self._known:
            ids = torch.tensor(text)
            super().reset(len(ids))
            features = self._table[ids[:-1]].unsqueeze(1).expand(-1, 2, -1)
            super().extend(Committed(features_TKH=features, next_ids_T=ids[1:]))
            given = iter([*tokens, *[0] * self.num_proposals])
            hidden = super()._chain(text[-1], lambda hidden_H, index: next(given))[1]
            self._known[key] = hidden[len(tokens)]
            self._text = list(text[:-1])
        return self._known[key]


def proposer() -> TextProposer:
    torch.manual_seed(5)
    geometry = Eagle3Geometry(
        hidden_size=WIDTH,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        intermediate_size=8,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        steps=2,
        layer_ids=(0, 1),
        vocab_size=VOCAB,
        draft_vocab_size=len(DRAFT_IDS),
        fc_norm=False,
        norm_output=False,
        max_position_embeddings=64,
    )
    network = Eagle3Network(geometry, draft_ids=torch.tensor(DRAFT_IDS))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter))
    embedding = torch.randn(VOCAB, WIDTH)
    made = TextProposer.__new__(TextProposer)
    made.begin(embedding)
    made.__init__(network, embed=lambda ids: embedding[ids], head=lambda hidden: hidden)  # type: ignore[misc]
    return made.begin(embedding)


def distance(monkeypatch: pytest.MonkeyPatch, **sampling: Any) -> float:
    target, own, asked = TableTarget(VOCAB), proposer(), Sampling(**sampling)
    found = output_distribution(speculative(target, own, asked), monkeypatch)  # type: ignore[arg-type]
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    return total_variation(found, reference(target, asked))


@pytest.mark.parametrize("draft_temperature", [0.0, 0.8, 1.5])
@pytest.mark.parametrize(
    "setting",
    [{"temperature": 1.5}, {"temperature": 1.0, "top_k": 3, "top_p": 0.9}, {"temperature": 0.5, "min_p": 0.1}],
)
def test_exact(monkeypatch: pytest.MonkeyPatch, setting: dict[str, Any], draft_temperature: float) -> None:
    assert distance(monkeypatch, **setting, draft_temperature=draft_temperature) < 1e-12


def test_q_of_another_chain_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: q of the greedy chain, which is not what the tokens were drawn from."""
    sample = Eagle3Proposer.sample

    def of_the_greedy_chain(self: Eagle3Proposer, anchor: int, draw: Draw) -> Proposal:
        made, greedy = sample(self, anchor, draw), list[Tensor]()

        def choose(hidden_H: Tensor, index: int) -> int:
            logits_V = self._over_target(self.score(hidden_H))
            greedy.append(logits_V.double().softmax(0))
            return int(logits_V.argmax())

        self._chain(anchor, choose)
        return Proposal(tokens_m=made.tokens_m, q_mV=torch.stack(greedy))

    monkeypatch.setattr(Eagle3Proposer, "sample", of_the_greedy_chain)
    assert distance(monkeypatch, temperature=1.0, draft_temperature=1.0) > 1e-3
