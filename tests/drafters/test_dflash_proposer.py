"""METHODS 9.2: the incremental proposer equals the training forward for every way the prefix was committed."""

from __future__ import annotations

import itertools

import pytest
import torch

from specflow.drafters.dflash.proposer import DFlashProposer
from tests.drafters.helpers import blocks_of, committed, document, network, tables, training_logits

torch.set_num_threads(1)


def proposer(precision: str = "fp32", **changes: object) -> DFlashProposer:
    embedding, head = tables()
    net = network(**changes)
    return DFlashProposer(net, embed=lambda i: embedding[i], head=lambda h: h.float() @ head.T, precision=precision)


def test_every_cut_of_the_prefix_into_rounds() -> None:
    doc, anchor, (embedding, head) = document(3, 20), 10, tables()
    expected = training_logits(network(), blocks_of([doc], [[anchor]]), embedding, head)[0]
    made = proposer()
    for size in (0, 1, 2, 3, 9):
        for cuts in itertools.islice(itertools.combinations(range(1, anchor), size), 40):
            made.reset(anchor)
            for start, stop in itertools.pairwise((0, *cuts, anchor)):
                if start:
                    made.propose(int(doc.ids[start]))  # a noise block between rounds must leave no trace
                made.extend(committed(doc.features[start:stop]))
            torch.testing.assert_close(made.logits(int(doc.ids[anchor])), expected, atol=1e-5, rtol=1e-5)


def test_proposals_are_the_first_most_likely_tokens() -> None:
    doc, made = document(4), proposer()
    made.reset(40)
    made.extend(committed(doc.features[:12]))
    logits = made.logits(5)
    first = [min(v for v in range(97) if row[v] == row.max()) for row in logits]
    assert made.propose(5).tolist() == first
    assert made.propose(5).dtype == torch.int64
    assert (made.num_proposals, made.layer_ids) == (4, (0, 2, 3))


def test_ties_go_to_the_lowest_id() -> None:
    embedding, head = tables()
    tied = torch.zeros_like(head)
    made = DFlashProposer(network(), embed=lambda i: embedding[i], head=lambda h: h @ tied.T)
    made.reset(4)
    made.extend(committed(document(1).features[:3]))
    assert made.propose(1).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(("precision", "tolerance"), [("packed", 0.02), ("bf16", 0.25)])
def test_narrow_weights_stay_close(precision: str, tolerance: float) -> None:
    doc, wide, narrow = document(6), proposer(), proposer(precision)
    for made in (wide, narrow):
        made.reset(30)
        made.extend(committed(doc.features[:17]))
    assert (wide.logits(3) - narrow.logits(3)).abs().max() < tolerance * wide.logits(3).std()


def test_one_layer_and_reset_forgets() -> None:
    doc, made = document(7), proposer(num_layers=1)
    made.reset(20)
    made.extend(committed(doc.features[:9]))
    first = made.logits(2)
    made.reset(20)
    made.extend(committed(document(8).features[:13]))
    assert not torch.equal(made.logits(2), first)
    made.reset(9)
    made.extend(committed(doc.features[:9]))
    assert torch.equal(made.logits(2), first)
    assert made.length == 9


def test_outgrowing_the_reservation_is_refused() -> None:
    made = proposer()
    made.reset(5)
    with pytest.raises(ValueError, match="at most 5 more rows"):
        made.extend(committed(document(1).features[:6]))
    with pytest.raises(ValueError, match="expected 3 features"):
        made.extend(committed(document(1).features[:2, :2]))
