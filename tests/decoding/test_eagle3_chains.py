"""Decoding with an EAGLE-3 drafter has exactly the target's distribution: all outputs enumerated (METHODS 9.5)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from specflow.decoding.sampling import Sampling
from specflow.drafters.base import Draw, Proposal
from specflow.drafters.eagle3.geometry import Eagle3Geometry
from specflow.drafters.eagle3.network import Eagle3Network
from specflow.drafters.eagle3.proposer import Eagle3Proposer
from tests.decoding.enumeration import output_distribution, total_variation
from tests.decoding.table_target import TableTarget
from tests.decoding.test_exact_chains import reference, speculative
from tests.decoding.text_fed import TextFed, text_fed

VOCAB, WIDTH = 4, 8
DRAFT_IDS = (0, 2, 3)


pytestmark = pytest.mark.usefixtures("remembered_distributions")


class TextProposer(TextFed, Eagle3Proposer):
    pass


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
    made: TextProposer = text_fed(TextProposer, network, torch.randn(VOCAB, WIDTH), captured=2, head=lambda x: x)
    return made


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
