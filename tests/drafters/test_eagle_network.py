"""The EAGLE network, its loss and its gradients against float64 without any of the product's code; its noise."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specflow.drafters.eagle.forward import with_last_hidden
from specflow.drafters.eagle.noise import uniform_noise
from specflow.drafters.rollouts import starts_before
from specflow.drafters.training import Progress, Source
from tests.drafters import eagle_reference as reference
from tests.drafters.eagle3_helpers import DRAFT_IDS, source
from tests.drafters.eagle3_reference import Text, weights_of
from tests.drafters.eagle_helpers import hidden_of, learner, network
from tests.drafters.helpers import tables

torch.set_num_threads(1)
START = Progress(0, 1)
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "limited vocabulary": {"limited": True},
    "three layers": {"num_layers": 3},
}


def text_of(given: Source) -> Text:
    return Text(given.token_ids_T, given.supervised_T, given.features_TKH, given.last_hidden_TH)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_chain_equals_one_causal_sequence_that_feeds_itself(shape: str) -> None:
    net, given, (embedding, _) = network(**SHAPES[shape]), source(1), tables()
    starts = [0, 5, 13, 27]
    with torch.no_grad():
        found = hidden_of(net, starts_before(with_last_hidden(given), torch.tensor(starts), depths=4))
    for n, start in enumerate(starts):
        following = torch.cat((given.token_ids_T, torch.zeros(8, dtype=torch.int64)))[start + 2 : start + 6].tolist()
        wanted = reference.chain(weights_of(net), net.geometry, embedding, text_of(given), start, following).detach()
        torch.testing.assert_close(found[:, n].double(), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_losses_and_gradients_equal_the_dense_reference(shape: str) -> None:
    net = network(**SHAPES[shape])
    given = [source(1, key=(3, 0, 5)), source(2, 21, prompt=3, key=(3, 0, 9))]
    own = learner(net, feature=0.7, token=0.3)
    terms = {term.name: term for term in own.objective(own.prepare(given), START)}
    assert {n: float(t.denominator) for n, t in terms.items()} == own.denominators(own.prepare(given), START)
    loss = sum(own.weights(START)[name] * t.numerator / t.denominator for name, t in terms.items())
    loss.backward()
    # The row before the last token has nothing to predict and is left out.
    noises = [uniform_noise(n - 2, 32, width=0.02, length=n, key=s.key) for s in given for n in [s.token_ids_T.numel()]]
    weights, (embedding, head) = weights_of(net), tables()
    feature, token, predicted, kept = reference.dense_loss(
        weights,
        net.geometry,
        [text_of(s) for s in given],
        [torch.cat((noise, torch.zeros(1, 32))) for noise in noises],
        embedding,
        head,
        draft_ids=DRAFT_IDS if net.draft_ids_D is not None else None,
    )
    assert (float(terms["feature"].denominator), float(terms["soft_ce"].denominator)) == (predicted, kept)
    if net.draft_ids_D is not None:
        assert float(terms["outside_vocabulary"].numerator) == predicted - kept > 0
    wanted = 0.7 * feature + 0.3 * token
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    wanted.backward()
    for name, parameter in net.named_parameters():
        expected = weights[name].grad
        assert parameter.grad is not None, name
        assert expected is not None
        assert (parameter.grad.double() - expected).norm() <= 2e-5 * expected.norm(), name


def test_a_row_predicts_the_next_state_and_through_the_head_the_token_after_it() -> None:
    """Row t reads the state at t and the token at t + 1; the loss compares it with the state at t + 1."""
    given = source(5, 24, prompt=10)
    batch = learner(network()).prepare([given])
    assert batch is not None
    places = torch.arange(10, 24)
    assert batch.predicted.labels_P.tolist() == given.token_ids_T[places].tolist()
    assert given.last_hidden_TH is not None
    assert torch.equal(batch.predicted.teacher_PH, given.last_hidden_TH[places - 1])
    rows = batch.rollouts.positions_S[batch.rollouts.starts_N][batch.predicted.starts_PL[:, 0]]
    assert torch.equal(rows, places - 2)
    read = batch.rollouts.token_ids_X[batch.rollouts.tokens_S[batch.rollouts.starts_N]]
    assert torch.equal(read, given.token_ids_T[rows + 1])
    assert torch.equal(batch.rollouts.features_SKH[:, 0], given.last_hidden_TH[: int(rows[-1]) + 1])


def test_noise_is_a_pure_function_of_the_documents_key() -> None:
    drawn = uniform_noise(40, 32, width=0.2, length=128, key=(1, 2, 3))
    assert torch.equal(drawn, uniform_noise(40, 32, width=0.2, length=128, key=(1, 2, 3)))
    for other in ((0, 2, 3), (1, 0, 3), (1, 2, 0)):
        assert not torch.equal(drawn, uniform_noise(40, 32, width=0.2, length=128, key=other))
    half = 0.5 * 0.2 * 512 / 128
    assert 0.99 * half < float(drawn.abs().max()) <= half
    assert abs(float(drawn.mean())) < 0.03 * half
    assert float(drawn.std()) == pytest.approx(half / 3**0.5, rel=0.03)  # of a uniform distribution


def test_the_batch_does_not_change_a_documents_noise() -> None:
    net, first, second = network(), source(1, key=(0, 0, 1)), source(2, key=(0, 0, 2))
    own = learner(net, noise=0.2)
    both, alone = (own.objective(own.prepare(given), START) for given in ([first, second], [second]))
    other = own.objective(own.prepare([first]), START)
    for i in (0, 1):
        torch.testing.assert_close(both[i].numerator, alone[i].numerator + other[i].numerator, rtol=1e-5, atol=0.0)
    silent = learner(net, noise=0.0)
    assert not torch.equal(silent.objective(silent.prepare([second]), START)[0].numerator, alone[0].numerator)


def test_documents_that_train_nothing() -> None:
    silent, own = source(7, supervised_T=torch.zeros(30, dtype=torch.bool)), learner(network())
    assert own.prepare([silent]) is None
    with_it, alone = own.prepare([silent, source(8)]), own.prepare([source(8)])
    assert torch.equal(own.objective(with_it, START)[0].numerator, own.objective(alone, START)[0].numerator)
    with pytest.raises(ValueError, match="last hidden states"):
        own.prepare([source(1, last_hidden_TH=None)])


def test_a_vocabulary_without_any_of_the_targets_choices() -> None:
    """No token can be learned then; the states still can."""
    net = network(limited=True)
    _, head = tables()
    outside = next(i for i in range(97) if i not in DRAFT_IDS)
    given = source(3, last_hidden_TH=(10.0 * head[outside]).expand(30, -1).clone())
    own = learner(net)
    batch = own.prepare([given])
    assert own.denominators(batch, START) == {"feature": 18.0, "soft_ce": 0.0, "outside_vocabulary": 18.0}
    terms = {t.name: t for t in own.objective(batch, START)}
    assert (float(terms["soft_ce"].numerator), float(terms["outside_vocabulary"].numerator)) == (0.0, 18.0)
    terms["feature"].numerator.backward()


def test_sizes_that_do_not_fit() -> None:
    for changes in ({"draft_vocab_size": 97}, {"steps": 0}, {"num_kv_heads": 3}):
        with pytest.raises(ValueError, match=r"expected|multiple"):
            network(**changes)
