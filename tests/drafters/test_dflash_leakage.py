"""METHODS 9.1: what inference could not have never changes a logit, bit for bit; what it has does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.drafters.helpers import Doc, blocks_of, document, network, tables, training_logits

torch.set_num_threads(1)
ANCHORS = [[9, 15, 24], [12, 20]]
BLOCK = 1  # of document 0, anchored at 15
Change = Callable[[list[Doc]], None]


def logits_after(change: Change | None) -> torch.Tensor:
    docs = [document(1), document(2)]
    if change:
        change(docs)
    embedding, head = tables()
    return training_logits(network(), blocks_of(docs, ANCHORS), embedding, head)[BLOCK]


def feature(document: int, row: int) -> Change:
    def change(docs: list[Doc]) -> None:
        docs[document].features[row] += 5.0

    return change


def token(document: int, row: int) -> Change:
    def change(docs: list[Doc]) -> None:
        docs[document].ids[row] = (docs[document].ids[row] + 7) % 90

    return change


FORBIDDEN = {
    "feature at the anchor": feature(0, 15),
    "feature after the anchor": feature(0, 16),
    "feature just before another anchor": feature(0, 23),
    "token after the anchor": token(0, 16),
    "token at the end of the block": token(0, 19),
    "anchor of an earlier block": token(0, 9),
    "anchor of a later block": token(0, 24),
    "other document's feature": feature(1, 3),
    "other document's anchor": token(1, 12),
}
ALLOWED = {
    "feature just before the anchor": feature(0, 14),
    "first feature": feature(0, 0),
    "anchor": token(0, 15),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden_input_changes_no_bit(name: str) -> None:
    assert torch.equal(logits_after(FORBIDDEN[name]), logits_after(None))


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed_input_changes_every_row(name: str) -> None:
    difference = (logits_after(ALLOWED[name]) - logits_after(None)).abs().amax(dim=1)
    assert (difference > 1e-3).all()
