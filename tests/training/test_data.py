"""Anchors, labels, order and the softmax list: pure functions, compared with plain loops."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from specflow.config.drafter import TrainParams
from specflow.drafters.anchors import document_order, legal_anchors, sample_anchors
from specflow.drafters.dflash.blocks import labels_and_validity
from specflow.training.data import Coverage, Documents, documents_of_step, sources_of_step
from specflow.training.frozen import choose_softmax_tokens
from specflow.training.probe import alignment, spread_over_kinds
from tests.drafters.helpers import VOCAB
from tests.training.helpers import MemorySource, documents, ends

torch.set_num_threads(1)
DATA = documents()
Masks = st.lists(st.booleans(), min_size=2, max_size=40)


@settings(max_examples=60, deadline=None)
@given(mask=Masks, count=st.integers(1, 12), seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_anchors_are_legal_distinct_increasing_and_pure(mask: list[bool], count: int, seed: int, epoch: int) -> None:
    legal = [t for t in range(len(mask) - 1) if mask[t] and mask[t + 1]]
    supervised = torch.tensor(mask)
    assert legal_anchors(supervised).tolist() == legal
    found = sample_anchors(supervised, count, seed=seed, epoch=epoch, document=7).tolist()
    assert found == sorted(set(found))
    assert set(found) <= set(legal)
    assert len(found) == min(count, len(legal))
    torch.rand(3)  # global random state takes no part
    assert sample_anchors(supervised, count, seed=seed, epoch=epoch, document=7).tolist() == found


def test_anchors_differ_by_seed_epoch_and_document_and_cover_all_positions() -> None:
    mask = torch.ones(60, dtype=torch.bool)
    keys = [(s, e, d) for s in range(2) for e in range(20) for d in range(2)]
    found = [tuple(sample_anchors(mask, 8, seed=s, epoch=e, document=d).tolist()) for s, e, d in keys]
    assert len(set(found)) == len(found)
    assert {t for some in found for t in some} == set(range(59))


@settings(max_examples=60, deadline=None)
@given(mask=Masks, block=st.integers(2, 7), data=st.data())
def test_labels_equal_a_plain_loop(mask: list[bool], block: int, data: st.DataObject) -> None:
    ids = torch.arange(100, 100 + len(mask))
    anchor = data.draw(st.integers(0, len(mask) - 1))
    labels, valid = labels_and_validity(ids, torch.tensor(mask), torch.tensor([anchor]), block_size=block)
    open_so_far = True
    for j in range(1, block):
        at = anchor + j
        open_so_far = open_so_far and at < len(mask) and mask[at]
        assert bool(valid[0, j - 1]) == open_so_far
        if at < len(mask):
            assert int(labels[0, j - 1]) == 100 + at


def test_order_is_a_permutation_per_epoch_and_steps_read_it_in_turn() -> None:
    assert sorted(document_order(11, seed=1, epoch=2)) == list(range(11))
    assert document_order(11, seed=1, epoch=2) != document_order(11, seed=1, epoch=3)
    read = [x for step in range(6) for x in documents_of_step(step, count=5, per_step=3, seed=4)]
    expected = [(e, p) for e in range(4) for p in document_order(5, seed=4, epoch=e)]
    assert read == expected[:18]


@settings(max_examples=40, deadline=None)
@given(per_step=st.integers(1, 9), ranks=st.integers(1, 5), step=st.integers(0, 4))
def test_the_ranks_of_a_step_read_what_one_process_reads(per_step: int, ranks: int, step: int) -> None:
    source, docs = DATA
    train, params = source.indices("train"), TrainParams(documents_per_step=per_step, anchors_per_document=4, seed=2)
    whole = sources_of_step(docs, train, params, step=step)
    parts = [sources_of_step(docs, train, params, step=step, rank=r, ranks=ranks) for r in range(ranks)]
    assert [s.key for part in parts for s in part] == [s.key for s in whole]
    assert all(torch.equal(a.anchors, b.anchors) for a, b in zip(whole, [s for p in parts for s in p], strict=True))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert [(s.key[1], s.key[2]) for s in whole] == [
        (epoch, train[place]) for epoch, place in documents_of_step(step, count=len(train), per_step=per_step, seed=2)
    ]


def test_softmax_tokens_hold_all_answers_then_the_frequent_ones() -> None:
    source, docs = documents()
    train = source.indices("train")
    ids = torch.cat([source.document(p).token_ids_T for p in train])
    answers = {int(t) for p in train for t in source.document(p).token_ids_T[source.document(p).supervised_T]}
    few = choose_softmax_tokens(docs, train, vocab_size=VOCAB, wanted=3)
    assert few.tolist() == sorted(answers)
    more = choose_softmax_tokens(docs, train, vocab_size=VOCAB, wanted=len(answers) + 2)
    others = sorted(set(range(VOCAB)) - answers, key=lambda t: (-int((ids == t).sum()), t))
    assert more.tolist() == sorted(answers | set(others[:2]))
    for whole in (None, VOCAB, 10**6):
        assert choose_softmax_tokens(docs, train, vocab_size=VOCAB, wanted=whole).tolist() == list(range(VOCAB))


def test_restricted_head_maps_labels_and_refuses_strangers() -> None:
    tokens = torch.tensor([3, 10, 11, 90])
    frozen, labels = ends(tokens), torch.tensor([[10, 90], [3, 5]])
    assert frozen.rows(labels, torch.tensor([[True, True], [True, False]])).tolist() == [[1, 3], [0, 0]]
    torch.testing.assert_close(frozen.head_RH, ends().head_RH[tokens])
    with pytest.raises(ValueError, match="1 supervised labels are outside the 4 softmax tokens"):
        frozen.rows(labels, torch.ones(2, 2, dtype=torch.bool))


def test_agreement_is_with_the_whole_vocabulary() -> None:
    hidden = torch.randn(400, 32, generator=torch.Generator().manual_seed(1))
    best = ends().head(hidden).argmax(dim=1)
    few = ends(torch.arange(0, VOCAB, 3))
    assert few.agrees(hidden, best).all()
    wrong = (best + torch.arange(400) % 90 + 1) % VOCAB
    assert not few.agrees(hidden, wrong).any()


def test_documents_keep_up_to_the_limit_and_select_layers() -> None:
    source = MemorySource([20, 20, 20, 20])
    size = 20 * 2 * 32 * 2
    docs = Documents(source, columns=[0, 2], limit=2 * size + 1)
    first = docs.get(0)
    assert torch.equal(first.features_TKH, source.stored[0].features_TKH[:, [0, 2]])
    assert docs.get(0) is first
    assert docs.get(1) is docs.get(1)
    assert docs.get(2) is not docs.get(2)


def test_coverage_and_kinds_in_turn() -> None:
    source, docs = documents([24, 31, 8, 9, 20, 20])
    found = Coverage.of(docs, [0, 1, 2, 3])
    assert (found.documents, found.tokens, found.supervised) == (4, 72, 16 + 23 + 0 + 1)
    assert (found.legal_anchors, found.documents_without_anchor) == (15 + 22, 2)
    assert spread_over_kinds(source, [0, 2, 4, 1], 3) == [0, 1, 2]
    assert spread_over_kinds(source, [0, 2, 4, 1], 9) == [0, 1, 2, 4]


def test_alignment_probe_counts_right_rows_and_sees_a_shift() -> None:
    source, frozen = MemorySource([24, 31, 20, 40]), ends()
    inverse = torch.linalg.pinv(frozen.head_RH.double()).float()
    for stored in source.stored:
        following = torch.roll(stored.token_ids_T, -1)
        # The hidden state whose logits are nearest to one-hot at the next token.
        stored.last_hidden_TH = (inverse @ torch.nn.functional.one_hot(following, VOCAB).float().T).T.bfloat16()
    agreeing, judged = alignment(source, [0, 1, 2, 3], frozen.head)
    assert judged == sum(int(s.supervised_T.sum()) for s in source.stored)
    assert agreeing >= 0.99 * judged

    def tied(hidden: torch.Tensor) -> torch.Tensor:
        """Another token is better everywhere, by 1 % of the distance to the mean."""
        logits = frozen.head(hidden)
        best, labels = logits.max(dim=1)
        logits[torch.arange(len(labels)), (labels + 1) % VOCAB] = best + 0.01 * (best - logits.mean(dim=1))
        return logits

    assert alignment(source, [0, 1, 2, 3], tied)[0] >= 0.99 * judged
    for stored in source.stored:
        stored.last_hidden_TH = torch.roll(stored.last_hidden_TH, 1, dims=0)
    agreeing, judged = alignment(source, [0, 1, 2, 3], frozen.head)
    assert agreeing < 0.1 * judged
