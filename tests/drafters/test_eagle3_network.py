"""The training forward, loss and gradients against float64 references without a line of the product's code."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specflow.drafters.eagle3.forward import hidden_of
from specflow.drafters.rollouts import starts_before
from specflow.drafters.training import Progress, Source
from tests.drafters import eagle3_reference as reference
from tests.drafters.eagle3_helpers import DRAFT_IDS, ends, learner, network, source
from tests.drafters.helpers import tables

torch.set_num_threads(1)
START = Progress(0, 1)
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "own head": {"own_head": True},
    "three layers": {"num_layers": 3},
    "norms": {"fc_norm": True, "norm_output": True},
    "two layers, norms, own head": {"num_layers": 2, "fc_norm": True, "norm_output": True, "own_head": True},
}


def text_of(given: Source) -> reference.Text:
    return reference.Text(given.token_ids_T, given.supervised_T, given.features_TKH, given.last_hidden_TH)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_chain_equals_one_causal_sequence_that_feeds_itself(shape: str) -> None:
    net, given, (embedding, _) = network(**SHAPES[shape]), source(1), tables()
    starts = [0, 5, 13, 27]
    with torch.no_grad():
        found = hidden_of(net, starts_before(given, torch.tensor(starts), depths=4), ends().embed)
    for n, start in enumerate(starts):
        following = torch.cat((given.token_ids_T, torch.zeros(8, dtype=torch.int64)))[start + 2 : start + 6].tolist()
        wanted = reference.chain(
            reference.weights_of(net), net.geometry, embedding, text_of(given), start, following
        ).detach()
        torch.testing.assert_close(found[:, n].double(), wanted, atol=1e-5, rtol=1e-5)


def compared(net: Any, given: list[Source], **options: Any) -> None:
    """Loss, counts and gradients of a step against the dense reference."""
    kind, aligned = options.get("kind", "soft_ce"), options.get("reference_mask", False)
    own = learner(net, depths=4, decay=0.7, **options)
    batch = own.prepare(given)
    terms = {term.name: term for term in own.objective(batch, START)}
    assert {n: float(t.denominator) for n, t in terms.items()} == own.denominators(batch, START)
    loss = terms[kind].numerator / terms[kind].denominator
    loss.backward()
    weights, (embedding, head) = reference.weights_of(net), tables()
    wanted, kept, dropped = reference.dense_loss(
        weights,
        net.geometry,
        [text_of(s) for s in given],
        embedding,
        head,
        depths=4,
        decay=0.7,
        draft_ids=DRAFT_IDS if net.has_own_head else None,
        kind=kind,
        reference_mask=aligned,
    )
    assert float(terms[kind].denominator) == kept
    if net.has_own_head:
        assert float(terms["outside_vocabulary"].numerator) == dropped > 0
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    wanted.backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        expected = weights[name].grad
        assert expected is not None
        assert (parameter.grad.double() - expected).norm() <= 2e-5 * expected.norm(), name


@pytest.mark.parametrize("kind", ["soft_ce", "kl", "reverse_kl", "ce", "tv", "lk_alpha", "lk_lambda"])
def test_every_loss_equals_the_dense_reference_in_value_and_gradient(kind: str) -> None:
    compared(network(own_head=True), [source(1), source(2, 21, prompt=3)], kind=kind)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reference_mask", [False, True])
def test_every_shape_and_alignment_equals_the_dense_reference(shape: str, reference_mask: bool) -> None:
    compared(network(**SHAPES[shape]), [source(3, 20, prompt=9), source(4, 26)], reference_mask=reference_mask)


def test_the_alignment_decides_which_tokens_count() -> None:
    """Row t at depth i predicts the token at t + 2 + i, whatever the rule; the rule says which of them count."""
    given = source(5, 24, prompt=10)
    for aligned, first, last in ((False, 10, 23), (True, 12, 23)):
        batch = learner(network(), depths=3, reference_mask=aligned).prepare([given])
        assert batch is not None
        places = torch.arange(first, last + 1)
        assert batch.predicted.labels_P.tolist() == given.token_ids_T[places].tolist()
        assert given.last_hidden_TH is not None
        assert torch.equal(batch.predicted.teacher_PH, given.last_hidden_TH[places - 1])
        rows = batch.rollouts.positions_S[batch.rollouts.starts_N][batch.predicted.starts_PL]
        assert torch.equal(rows, places[:, None] - 2 - torch.arange(3))


def test_rows_that_are_not_stored_are_left_out() -> None:
    """Rows behind the last usable one are not in the store; tokens beyond them have no teacher."""
    whole, supervised = source(6), torch.zeros(30, dtype=torch.bool)
    supervised[12:20] = True
    assert whole.last_hidden_TH is not None
    cut = source(
        6, supervised_T=supervised, features_TKH=whole.features_TKH[:19], last_hidden_TH=whole.last_hidden_TH[:19]
    )
    for aligned, places in ((False, range(12, 20)), (True, range(14, 20))):
        batch = learner(network(), reference_mask=aligned).prepare([cut])
        assert batch is not None
        assert batch.predicted.labels_P.tolist() == [int(whole.token_ids_T[p]) for p in places]


def test_a_document_without_supervised_tokens_trains_nothing() -> None:
    silent = source(7, supervised_T=torch.zeros(30, dtype=torch.bool))
    own = learner(network())
    assert own.prepare([silent]) is None
    with_it, alone = own.prepare([silent, source(8)]), own.prepare([source(8)])
    assert torch.equal(own.objective(with_it, START)[0].numerator, own.objective(alone, START)[0].numerator)


def test_last_hidden_states_are_required() -> None:
    with pytest.raises(ValueError, match="last hidden states"):
        learner(network()).prepare([source(1, last_hidden_TH=None)])
