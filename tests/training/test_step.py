"""METHODS 9.6 and the objective against float64 brute force."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from specflow.drafters.cross_entropy import target_cross_entropy
from specflow.drafters.dflash.blocks import assemble
from specflow.drafters.dflash.forward import hidden_of
from specflow.drafters.dflash.learner import TERM
from specflow.drafters.dflash.objective import default_decay, position_weights
from specflow.drafters.training import Source
from specflow.training.data import source_of
from specflow.training.step import StepSums
from tests.drafters.helpers import VOCAB, tables
from tests.training.helpers import documents, ends, fresh, gradients_of

torch.set_num_threads(1)


def sources(lengths: list[int] | None = None) -> list[Source]:
    _, docs = documents(lengths)
    return [source_of(docs.get(p), anchors=6, seed=3, epoch=0) for p in range(6)]


def gradients(per_pass: int | None, some: list[Source]) -> tuple[StepSums, dict[str, torch.Tensor]]:
    net = fresh()
    sums = gradients_of(net, some, ends(), decay=2.5, documents_per_pass=per_pass)
    return sums, {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("per_pass", [1, 2, 4, 5])
def test_any_split_into_passes_gives_the_same_loss_and_gradients(per_pass: int) -> None:
    some = sources()
    whole, expected = gradients(None, some)
    split, found = gradients(per_pass, some)
    assert found.keys() == expected.keys()
    assert len(found) == 2 * 11 + 3
    assert split.loss == pytest.approx(whole.loss, rel=1e-5)
    for name, value in expected.items():
        assert (found[name] - value).norm() <= 1e-5 * value.norm(), name


def test_loss_equals_a_float64_loop_over_blocks() -> None:
    some, net, (_, head) = sources(), fresh(), tables()
    sums = gradients_of(net, some, ends(), decay=2.5)
    blocks = assemble(some, block_size=5)
    assert blocks is not None
    hidden = hidden_of(net, blocks, ends().embed).double()
    numerator = denominator = 0.0
    row = 0
    for source in some:
        for anchor in source.anchors.tolist():
            for j in range(1, 5):
                at = anchor + j
                if at >= len(source.token_ids_T) or not source.supervised_T[anchor : at + 1].all():
                    break
                logits = head.double() @ hidden[row, j - 1]
                weight = math.exp(-(j - 1) / 2.5)
                numerator += weight * float((logits.logsumexp(0) - logits[source.token_ids_T[at]]).detach())
                denominator += weight
            row += 1
    assert row == sums.counts.anchors == 36
    assert sums.denominators[TERM] == pytest.approx(denominator, rel=1e-6)
    assert sums.numerators[TERM] == pytest.approx(numerator, rel=1e-5)


def test_a_document_without_anchor_contributes_zero_and_is_counted() -> None:
    some = sources()
    none = Source(
        token_ids_T=torch.arange(9),
        supervised_T=torch.zeros(9, dtype=torch.bool),
        features_TKH=torch.full((9, 3, 32), torch.nan),
        anchors=torch.empty(0, dtype=torch.int64),
    )
    expected, with_none = gradients(2, some), gradients(2, [*some[:3], none, *some[3:]])
    assert with_none[0].documents_without_anchor == 1
    assert with_none[0].denominators == pytest.approx(expected[0].denominators)
    for name, value in expected[1].items():
        torch.testing.assert_close(with_none[1][name], value, rtol=1e-4, atol=1e-6)
    alone, grads = gradients(None, [none])
    assert (alone.counts.anchors, alone.loss, alone.trained, grads) == (0, 0.0, False, {})


@pytest.mark.parametrize("chunk", [1, 7, 64, None])
def test_chunked_likelihood_and_gradient_equal_autograd_in_float64(chunk: int | None) -> None:
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(23, 32, generator=g, requires_grad=True)
    labels, weights = torch.randint(0, VOCAB, (23,), generator=g), torch.rand(23, generator=g)
    _, head = tables()
    reference = hidden.detach().double().requires_grad_(True)
    expected = torch.nn.functional.cross_entropy(reference @ head.double().T, labels, reduction="none")
    (expected * weights.double()).sum().backward()
    losses = target_cross_entropy(hidden, head, labels, chunk_rows=chunk)
    (losses * weights).sum().backward()
    assert reference.grad is not None
    assert hidden.grad is not None
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(hidden.grad.double(), reference.grad, rtol=1e-4, atol=1e-5)


def test_position_weights_and_defaults() -> None:
    assert position_weights(4, 2.0).tolist() == pytest.approx([1.0, math.exp(-0.5), math.exp(-1.0)])
    assert [default_decay(b) for b in (16, 10, 8, 6)] == [7.0, 5.0, 4.0, 3.0]


@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize("chunk", [2, 64])
def test_soft_targets_equal_float64_in_value_and_gradient(share: float, chunk: int) -> None:
    g = torch.Generator().manual_seed(5)
    hidden, teacher, head = (torch.randn(n, 12, generator=g) for n in (7, 7, 23))
    labels = torch.randint(23, (7,), generator=g)
    wanted = hidden.double().requires_grad_()
    teacher_p = (teacher.double() @ head.double().T).softmax(1)
    target = (1 - share) * torch.nn.functional.one_hot(labels, 23).double() + share * teacher_p
    expected = -(target * (wanted @ head.double().T).log_softmax(1)).sum(1)
    weights = torch.linspace(0.5, 2.0, 7)
    (expected * weights.double()).sum().backward()
    found = hidden.clone().requires_grad_()
    losses = target_cross_entropy(found, head, labels, teacher_MH=teacher, share=share, chunk_rows=chunk)
    (losses * weights).sum().backward()
    assert wanted.grad is not None
    assert found.grad is not None
    torch.testing.assert_close(losses.double(), expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.grad.double(), wanted.grad, rtol=1e-4, atol=1e-5)


def test_soft_targets_without_a_teacher_are_refused() -> None:
    with pytest.raises(ValueError, match="teacher"):
        target_cross_entropy(torch.zeros(1, 4), torch.zeros(3, 4), torch.zeros(1, dtype=torch.int64), share=0.5)


def test_the_teacher_of_a_label_is_the_row_before_it() -> None:
    _, docs = documents()
    plain = source_of(docs.get(0), anchors=6, seed=3, epoch=0)
    rows = torch.arange(plain.token_ids_T.numel(), dtype=torch.float32).unsqueeze(1)
    blocks = assemble([dataclasses.replace(plain, last_hidden_TH=rows)], block_size=5)
    assert blocks is not None
    assert blocks.teacher_NMH is not None
    for n, anchor in enumerate(plain.anchors.tolist()):
        for j in range(1, 5):
            if blocks.valid_NM[n, j - 1]:
                assert blocks.teacher_NMH[n, j - 1].item() == anchor + j - 1
    without = assemble([plain], block_size=5)
    assert without is not None
    assert without.teacher_NMH is None
