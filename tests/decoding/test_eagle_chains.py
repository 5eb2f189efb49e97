"""Decoding with an EAGLE drafter has exactly the target's distribution: all outputs enumerated (METHODS 9.5)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specflow.decoding import chooser, verification
from specflow.decoding.sampling import Sampling
from specflow.drafters.base import Draw, Proposal
from specflow.drafters.eagle.geometry import EagleGeometry
from specflow.drafters.eagle.network import EagleNetwork
from specflow.drafters.eagle.proposer import EagleProposer
from tests.decoding.enumeration import output_distribution, total_variation
from tests.decoding.table_target import TableTarget, memoised_distribution
from tests.decoding.test_exact_chains import reference, speculative
from tests.decoding.text_fed import TextFed, text_fed

VOCAB, WIDTH = 3, 8
DRAFT_IDS = (0, 2)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    remembered = memoised_distribution()
    for module in (chooser, verification):
        monkeypatch.setattr(module, "distribution", remembered)


class TextProposer(TextFed, EagleProposer):
    layer_ids = (0,)  # its features tell the test the text; the drafter reads the last hidden states


def proposer() -> TextProposer:
    torch.manual_seed(5)
    geometry = EagleGeometry(
        hidden_size=WIDTH,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        intermediate_size=8,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        steps=2,
        vocab_size=VOCAB,
        draft_vocab_size=len(DRAFT_IDS),
        max_position_embeddings=64,
    )
    network = EagleNetwork(geometry, draft_ids=torch.tensor(DRAFT_IDS))
    embedding, head = torch.randn(VOCAB, WIDTH), torch.randn(VOCAB, WIDTH)
    made: TextProposer = text_fed(TextProposer, network, embedding, captured=0, head=lambda x: x @ head.T / 8)
    return made


def distance(monkeypatch: pytest.MonkeyPatch, **sampling: Any) -> float:
    target, own, asked = TableTarget(VOCAB), proposer(), Sampling(**sampling)
    found = output_distribution(speculative(target, own, asked), monkeypatch)  # type: ignore[arg-type]
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    return total_variation(found, reference(target, asked))


@pytest.mark.parametrize("draft_temperature", [0.0, 1.5])
@pytest.mark.parametrize(
    "setting",
    [{"temperature": 1.5}, {"temperature": 1.0, "top_k": 2, "top_p": 0.9}, {"temperature": 0.5, "min_p": 0.1}],
)
def test_exact(monkeypatch: pytest.MonkeyPatch, setting: dict[str, Any], draft_temperature: float) -> None:
    assert distance(monkeypatch, **setting, draft_temperature=draft_temperature) < 1e-12


def test_a_q_that_is_not_the_drawn_ones_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: the first proposal's q for all of them, though each depends on those before it."""
    sample = EagleProposer.sample

    def of_the_first(self: EagleProposer, anchor: int, draw: Draw) -> Proposal:
        made = sample(self, anchor, draw)
        assert made.q_mV is not None
        return Proposal(tokens_m=made.tokens_m, q_mV=made.q_mV[:1].expand_as(made.q_mV))

    monkeypatch.setattr(EagleProposer, "sample", of_the_first)
    assert distance(monkeypatch, temperature=1.0, draft_temperature=1.0) > 1e-3
