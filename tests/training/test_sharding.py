"""METHODS 9.6 for DFlash: loss and gradients against a dense float64 reference, for any split of the same step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specflow.drafters import row_losses
from specflow.drafters.dflash import attention, memory
from specflow.drafters.training import Source
from specflow.training.passes import split_sources
from tests.drafters.helpers import document, tables
from tests.training.dense_reference import Text, dense_loss
from tests.training.helpers import ends, fresh, gradients_of

torch.set_num_threads(1)
DECAY, SHARE = 2.5, 0.4
LENGTHS = (24, 31, 12, 40)
Gradients = dict[str, Tensor]


def sources() -> list[Source]:
    """Four documents: one whose last block ends with it, one with a gap in its supervision, one without anchors."""
    anchors = ([8, 9, 15, 22], [10, 18, 29], [], [8, 13, 20, 21, 22, 38])
    made = []
    for i, (length, some) in enumerate(zip(LENGTHS, anchors, strict=True)):
        doc = document(50 + i, length)
        supervised = doc.supervised.clone()
        if i == 1:
            supervised[20] = False
        g = torch.Generator().manual_seed(i)
        last_hidden = torch.randn(length, 32, generator=g)
        made.append(
            Source(
                token_ids_T=doc.ids,
                supervised_T=supervised,
                features_TKH=doc.features,
                anchors=torch.tensor(some, dtype=torch.int64),
                last_hidden_TH=last_hidden,
            )
        )
    return made


def product(some: Sequence[Source], *, documents_per_pass: int | None = None) -> tuple[float, Gradients]:
    net = fresh()
    sums = gradients_of(net, list(some), ends(), decay=DECAY, soft_targets=SHARE, documents_per_pass=documents_per_pass)
    return sums.loss, {n: p.grad for n, p in net.named_parameters() if p.grad is not None}


@pytest.fixture(scope="module")
def reference() -> tuple[float, Gradients]:
    net = fresh()
    weights = {name: p.detach().double().requires_grad_() for name, p in net.named_parameters()}
    texts = [
        Text(s.token_ids_T, s.supervised_T, s.features_TKH, s.anchors.tolist(), s.last_hidden_TH) for s in sources()
    ]
    loss = dense_loss(weights, net.geometry, texts, *tables(), decay=DECAY, soft_targets=SHARE)
    loss.backward()
    return float(loss.detach()), {name: w.grad for name, w in weights.items() if w.grad is not None}


def assert_equal(found: tuple[float, Gradients], expected: tuple[float, Gradients], tolerance: float = 1e-5) -> None:
    assert found[0] == pytest.approx(expected[0], rel=tolerance)
    assert found[1].keys() == expected[1].keys()
    for name, value in expected[1].items():
        assert (found[1][name].double() - value).norm() <= tolerance * value.norm(), name


def test_one_pass_equals_the_dense_reference(reference: tuple[float, Gradients]) -> None:
    found = product(sources())
    assert len(found[1]) == 2 * 11 + 3
    assert_equal(found, reference)


@settings(deadline=None, max_examples=25)
@given(
    order=st.permutations(range(len(LENGTHS))),
    documents=st.sampled_from([None, 1, 2, 3]),
    rows=st.integers(5, 80),
    scores=st.sampled_from([1, 2000, 1 << 20]),
    logits=st.integers(1, 3000),
)
def test_any_split_equals_the_dense_reference(
    reference: tuple[float, Gradients], order: list[int], documents: int | None, rows: int, scores: int, logits: int
) -> None:
    """Order and packing of documents, documents and anchors of a pass, chunks of attention and of the vocabulary."""
    some = sources()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "ROWS_PER_PASS", rows)
        patch.setattr(attention, "CHUNK_SCORES", scores)
        patch.setattr(row_losses, "CHUNK_LOGITS", logits)
        assert_equal(product([some[i] for i in order], documents_per_pass=documents), reference)


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=6), st.integers(1, 12), st.sampled_from([None, 1, 2, 3]))
def test_split_sources_keeps_every_anchor_once(counts: list[int], anchors: int, documents: int | None) -> None:
    base = sources()[0]
    some = [
        dataclasses.replace(base, anchors=torch.arange(n), token_ids_T=torch.full((3,), i))
        for i, n in enumerate(counts)
    ]
    groups = list(split_sources(some, anchors=anchors, documents=documents))
    found = [(int(s.token_ids_T[0]), a) for group in groups for s in group for a in s.anchors.tolist()]
    assert found == [(i, a) for i, n in enumerate(counts) for a in range(n)]
    for i, group in enumerate(groups):
        total = sum(s.anchors.numel() for s in group)
        assert 0 < total <= anchors
        assert all(s.anchors.numel() for s in group)
        assert documents is None or len(group) <= documents
        if i < len(groups) - 1 and documents is None:
            assert total == anchors


def test_without_a_bound_every_document_stays() -> None:
    assert [len(group) for group in split_sources(sources(), documents=3)] == [3, 1]
    assert [len(group) for group in split_sources(sources())] == [4]


def test_a_pass_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one anchor"):
        list(split_sources(sources(), anchors=0))
