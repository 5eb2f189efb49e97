"""Speculative decoding has exactly the target's distribution: all outputs of three tokens enumerated, rules and bugs.

The reference is the product of the target's adjusted rows along the text. No sampling is involved, so there is no
false alarm: a correct engine differs by rounding (below 1e-12), every planted bug by more than 1e-3.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from specflow.decoding import chooser, verification
from specflow.decoding.distribution import distribution
from specflow.decoding.plain import decode_plain
from specflow.decoding.sampling import Sampling
from specflow.decoding.speculative import decode_speculative
from specflow.drafters.base import Proposal
from tests.decoding.enumeration import Output, output_distribution, total_variation
from tests.decoding.table_target import TableProposer, TableTarget

PROMPT = [1, 2, 0]
LENGTH = 3
VOCAB = 3
WIDE = 6

SETTINGS = {
    "temperature 0.5": {"temperature": 0.5},
    "temperature 1.5": {"temperature": 1.5},
    "top-k": {"temperature": 1.0, "top_k": 2},
    "top-p": {"temperature": 1.2, "top_p": 0.7},
    "min-p": {"temperature": 1.0, "min_p": 0.3},
    "all filters": {"temperature": 1.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1},
    "penalties": {
        "temperature": 1.0,
        "presence_penalty": 0.6,
        "frequency_penalty": 0.9,
        "repetition_penalty": 1.4,
    },
    "penalties, greedy": {"presence_penalty": 0.6, "frequency_penalty": 0.9, "repetition_penalty": 1.4},
}


pytestmark = pytest.mark.usefixtures("remembered_distributions")


def reference(target: TableTarget, sampling: Sampling, length: int = LENGTH) -> dict[Output, float]:
    """By the chain rule, over all texts that end at the length or at the first end token."""
    found: dict[Output, float] = {}
    for full in itertools.product(range(target.vocab_size), repeat=length):
        end = next((i + 1 for i, token in enumerate(full) if token in target.end_ids), length)
        text, probability = full[:end], 1.0
        for i, token in enumerate(text):
            row = distribution(target.after([*PROMPT, *text[:i]]), sampling, Counter(text[:i]))
            probability *= float(row[token])
        if probability:
            found[text] = probability
    return found


def speculative(target: TableTarget, proposer: TableProposer, sampling: Sampling) -> Callable[[], Output]:
    made: Any = target
    return lambda: tuple(decode_speculative(made, proposer, PROMPT, max_new_tokens=LENGTH, sampling=sampling).tokens)


def distance(
    monkeypatch: pytest.MonkeyPatch, sampling: Sampling, *, vocab: int, proposals: int, **options: Any
) -> float:
    target = TableTarget(vocab)
    proposer = TableProposer(target, num_proposals=proposals, **options)
    found = output_distribution(speculative(target, proposer, sampling), monkeypatch)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    return total_variation(found, reference(target, sampling))


@pytest.mark.parametrize("name", SETTINGS)
def test_greedy_proposals(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert distance(monkeypatch, Sampling(**SETTINGS[name]), vocab=WIDE, proposals=2) < 1e-12


@pytest.mark.parametrize("draft_temperature", [0.7, 1.6])
@pytest.mark.parametrize("name", SETTINGS)
def test_drawn_proposals(monkeypatch: pytest.MonkeyPatch, name: str, draft_temperature: float) -> None:
    sampling = Sampling(**SETTINGS[name], draft_temperature=draft_temperature)
    assert distance(monkeypatch, sampling, vocab=VOCAB, proposals=2) < 1e-12


def test_a_drafter_that_cannot_propose_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(temperature=1.0, draft_temperature=1.0)
    assert distance(monkeypatch, sampling, vocab=4, proposals=2, excluded=(0, 3)) < 1e-12


def test_drawn_proposals_may_be_taken_for_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proposer may leave q out whatever it did: it loses acceptance, not exactness."""
    sample = TableProposer.sample
    monkeypatch.setattr(
        TableProposer, "sample", lambda self, anchor, draw: Proposal(tokens_m=sample(self, anchor, draw).tokens_m)
    )
    sampling = Sampling(temperature=1.0, draft_temperature=1.0, top_k=2, frequency_penalty=0.5)
    assert distance(monkeypatch, sampling, vocab=VOCAB, proposals=2) < 1e-12


@pytest.mark.parametrize("draft_temperature", [0.0, 1.0])
def test_end_tokens_within_a_round(monkeypatch: pytest.MonkeyPatch, draft_temperature: float) -> None:
    target = TableTarget(VOCAB, ends=frozenset({2}))
    sampling = Sampling(temperature=1.0, draft_temperature=draft_temperature, presence_penalty=0.5)
    proposer = TableProposer(target, num_proposals=2)
    found = output_distribution(speculative(target, proposer, sampling), monkeypatch)
    assert total_variation(found, reference(target, sampling)) < 1e-12


def test_plain_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    target: Any = TableTarget(WIDE)
    for settings in SETTINGS.values():
        sampling = Sampling(**settings)
        found = output_distribution(
            lambda s=sampling: tuple(decode_plain(target, [PROMPT], max_new_tokens=LENGTH, sampling=[s])[0].tokens),
            monkeypatch,
        )
        assert total_variation(found, reference(target, sampling)) < 1e-12


# Planted bugs: each must be seen.


def _q_of_the_next_position(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = TableProposer.sample

    def shifted(self: TableProposer, anchor: int, draw: Any) -> Proposal:
        made = sample(self, anchor, draw)
        assert made.q_mV is not None
        return Proposal(tokens_m=made.tokens_m, q_mV=made.q_mV.roll(1, dims=0))

    monkeypatch.setattr(TableProposer, "sample", shifted)


def _q_at_another_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = TableProposer.sample

    def flatter(self: TableProposer, anchor: int, draw: Any) -> Proposal:
        made = sample(self, anchor, draw)
        assert made.q_mV is not None
        return Proposal(tokens_m=made.tokens_m, q_mV=made.q_mV.sqrt() / made.q_mV.sqrt().sum(dim=1, keepdim=True))

    monkeypatch.setattr(TableProposer, "sample", flatter)


def _residual_not_normalised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inverting the running sum of an unnormalised residual leaves what is missing to the last token."""
    normalised = chooser.residual

    def short(p_V: Tensor, q_V: Tensor | None, rejected: int) -> Tensor:
        rest_V = normalised(p_V, q_V, rejected)
        rest_V = rest_V * (0.5 * (p_V - (q_V if q_V is not None else 0)).abs().sum().clamp_max(1.0))
        rest_V[-1] += 1.0 - rest_V.sum()
        return rest_V

    monkeypatch.setattr(verification, "residual", short)


def _correction_from_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "residual", lambda p_V, q_V, rejected: p_V)


def _bonus_from_the_row_before(monkeypatch: pytest.MonkeyPatch) -> None:
    verify = verification.verify_chain
    monkeypatch.setattr(
        verification,
        "verify_chain",
        lambda logits_RV, *rest: verify(torch.cat((logits_RV[:-1], logits_RV[-2:-1])), *rest),
    )


def _no_bonus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bonus is forgotten: the last accepted proposal takes its place, and is emitted without being the next one."""
    verify = verification.verify_chain

    def forgotten(logits_RV: Tensor, proposal: Proposal, own: Any) -> tuple[int, int]:
        accepted, token = verify(logits_RV, proposal, own)
        return (accepted, token) if accepted < len(proposal.tokens_m) else (accepted, int(proposal.tokens_m[-1]))

    monkeypatch.setattr(verification, "verify_chain", forgotten)


def _penalties_ignore_the_accepted_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    after = chooser.Chooser.after
    monkeypatch.setattr(chooser.Chooser, "after", lambda self, tokens=(): after(self))


def _proposals_always_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.decoding.enumeration import Script

    monkeypatch.setattr(Script, "accepts", lambda self, **_: True)


CERTAIN, DRAWN = {"draft_temperature": 0.0}, {"draft_temperature": 1.0}


@pytest.mark.parametrize(
    ("plant", "options"),
    [
        (_q_of_the_next_position, DRAWN),
        (_q_at_another_temperature, DRAWN),
        (_residual_not_normalised, DRAWN),
        (_residual_not_normalised, CERTAIN),
        (_correction_from_the_target, DRAWN),
        (_correction_from_the_target, CERTAIN),
        (_bonus_from_the_row_before, DRAWN),
        (_no_bonus, CERTAIN),
        (_penalties_ignore_the_accepted_prefix, {**DRAWN, "frequency_penalty": 0.9}),
        (_penalties_ignore_the_accepted_prefix, {**CERTAIN, "frequency_penalty": 0.9}),
        (_proposals_always_accepted, CERTAIN),
    ],
)
def test_planted_bugs_are_seen(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], options: dict[str, float]
) -> None:
    plant(monkeypatch)
    sampling = Sampling(temperature=1.0, **options)  # type: ignore[arg-type]
    # One proposal, so that its bonus is delivered within three tokens.
    proposals = 2 if plant is _q_of_the_next_position else 1
    assert distance(monkeypatch, sampling, vocab=VOCAB, proposals=proposals) > 1e-3
