"""METHODS 9.2 for DSpark, the walk along the block, what it draws from, and the confidence it leaves."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specflow.drafters.dspark.bias_table import BiasTable
from specflow.drafters.dspark.proposer import DSparkProposer
from tests.drafters.dspark_helpers import (
    KINDS,
    RANK,
    corrected_logits,
    dspark_blocks,
    dspark_network,
    dspark_proposer,
)
from tests.drafters.helpers import VOCAB, committed, document

torch.set_num_threads(1)


@pytest.mark.parametrize(("head", "anchor"), KINDS)
def test_every_cut_of_the_prefix_into_rounds(head: str, anchor: bool) -> None:
    doc, at = document(3, 20), 10
    net = dspark_network(head, anchor)
    expected = corrected_logits(net, dspark_blocks(net, [doc], [[at]]))[0]
    made = dspark_proposer(net)
    for size in (0, 1, 3, 9):
        for cuts in itertools.islice(itertools.combinations(range(1, at), size), 12):
            made.reset(at)
            for start, stop in itertools.pairwise((0, *cuts, at)):
                if start:
                    made.propose(int(doc.ids[start]))  # a round in between must leave no trace
                made.extend(committed(doc.features[start:stop]))
            found = made.corrected(int(doc.ids[at]), doc.ids[at + 1 : at + 5])
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def ready(head: str, anchor: bool, precision: str = "fp32") -> DSparkProposer:
    made = dspark_proposer(dspark_network(head, anchor), precision)
    made.reset(40)
    made.extend(committed(document(4).features[:12]))
    return made


@pytest.mark.parametrize(("head", "anchor"), KINDS)
def test_proposals_are_the_first_most_likely_tokens_given_those_before(head: str, anchor: bool) -> None:
    made = ready(head, anchor)
    for first in range(0, 90, 7):
        proposals = made.propose(first)
        assert proposals.dtype == torch.int64
        rows = made.corrected(first, proposals)
        assert proposals.tolist() == [min(v for v in range(VOCAB) if row[v] == row.max()) for row in rows]
    assert (made.num_proposals, made.layer_ids) == (4, (0, 2, 3))


@pytest.mark.parametrize(("head", "anchor"), KINDS)
def test_every_token_is_drawn_from_the_corrected_logits(head: str, anchor: bool) -> None:
    made, g, seen = ready(head, anchor), torch.Generator().manual_seed(2), []

    def draw(logits_V: Tensor) -> tuple[int, Tensor]:
        q_V = (logits_V / 3).softmax(0)
        seen.append(logits_V)
        return int(torch.multinomial(q_V, 1, generator=g)), q_V

    for first in (5, 17, 40):
        seen.clear()
        drawn = made.sample(first, draw)
        expected = made.corrected(first, drawn.tokens_m)
        torch.testing.assert_close(torch.stack(seen), expected, atol=1e-6, rtol=1e-6)
        assert drawn.q_mV is not None
        torch.testing.assert_close(drawn.q_mV, (expected / 3).softmax(1), atol=1e-6, rtol=1e-5)
        assert not torch.equal(drawn.tokens_m, made.propose(first))


@pytest.mark.parametrize(("head", "anchor"), KINDS)
def test_confidence_is_of_the_round_that_was_walked(head: str, anchor: bool) -> None:
    net, made = dspark_network(head, anchor), ready(head, anchor)
    assert made.confidence_m is None
    proposals = made.propose(5)
    assert net.confidence_head is not None
    with torch.no_grad():
        embedded = net.embed_before(torch.tensor([5]), proposals.unsqueeze(0))[0]
        expected = net.confidence_head(made.hidden(5), embedded)
    assert made.confidence_m is not None
    assert made.confidence_m.dtype == torch.float32
    torch.testing.assert_close(made.confidence_m, expected, atol=1e-6, rtol=1e-6)
    first = made.confidence_m
    drawn = made.sample(5, lambda logits_V: (int(logits_V.argmin()), logits_V.softmax(0)))
    assert made.confidence_m is not None
    assert not torch.equal(made.confidence_m, first)
    assert made.confidence_m[0] == first[0]  # the anchor is before both
    assert not torch.equal(drawn.tokens_m, proposals)
    made.reset(3)
    assert made.confidence_m is None
    without = dspark_proposer(dspark_network(head, anchor, confidence=False))
    without.propose(1)
    assert without.confidence_m is None


def test_a_fork_has_its_own_state() -> None:
    made = ready("rnn", True)
    other = made.fork()
    other.reset(40)
    other.extend(committed(document(5).features[:7]))
    theirs, ours = other.propose(3), made.propose(3)
    assert not torch.equal(theirs, ours)
    assert other.confidence_m is not None
    confidence = other.confidence_m
    made.propose(8)
    assert other.confidence_m is confidence
    assert torch.equal(other.propose(3), theirs)


@pytest.mark.parametrize(("precision", "tolerance"), [("packed", 0.02), ("bf16", 0.25)])
@pytest.mark.parametrize("head", ["markov", "rnn"])
def test_narrow_weights_stay_close(head: str, precision: str, tolerance: float) -> None:
    wide, narrow = ready(head, True), ready(head, True, precision)
    text = torch.tensor([3, 4, 5, 6])
    expected = wide.corrected(3, text)
    assert (narrow.corrected(3, text) - expected).abs().max() < tolerance * expected.std()
    proposals = narrow.propose(3)
    best = narrow.corrected(3, proposals).max(dim=1).values
    chosen = narrow.corrected(3, proposals).gather(1, proposals.unsqueeze(1)).squeeze(1)
    assert (best - chosen).max() <= 0.1


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.0, 0.05, 0.5, 3.0]), st.sampled_from([97, 4000]), st.booleans())
def test_the_bound_finds_the_best_token(seed: int, scale: float, vocab: int, tied: bool) -> None:
    """Equal to the whole product, ties included, whether few tokens stay open or all do."""
    g = torch.Generator().manual_seed(seed)
    table, code = torch.randn(vocab, RANK, generator=g) * scale, torch.randn(RANK, generator=g)
    base = torch.randn(2, vocab, generator=g) * 2
    if tied:  # small whole numbers: sums are exact, and many are equal
        table, code, base = table.round(), code.round(), base.round()
    made = BiasTable(table, precision="fp32")
    likely = made.likely(base)
    for row in (0, 1):
        scores = base[row].double() + table.double() @ code.double()
        best = made.best(base[row], likely[row], code)
        if tied:
            assert best == int(scores.argmax())
        else:
            assert scores[best] >= scores.max() - 1e-5


def test_few_tokens_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made = BiasTable(torch.full((4000, RANK), 0.01), precision="fp32")
    monkeypatch.setattr(made, "_product", lambda x: pytest.fail("the whole product was computed"))
    base = torch.randn(1, 4000, generator=torch.Generator().manual_seed(1)) * 2
    assert made.best(base[0], made.likely(base)[0], torch.ones(RANK)) == int(base[0].argmax())
