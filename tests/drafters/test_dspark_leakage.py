"""METHODS 9.1: what inference could not have never changes a corrected logit, bit for bit; what it has does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.drafters.dspark_helpers import KINDS, corrected_logits, dspark_blocks, dspark_network
from tests.drafters.helpers import Doc, document

torch.set_num_threads(1)
ANCHORS = [[9, 15, 24], [12, 20]]
BLOCK = 1  # of document 0, anchored at 15: its rows predict 16, 17, 18, 19
Change = Callable[[list[Doc]], None]


def logits_after(head: str, anchor: bool, change: Change | None) -> torch.Tensor:
    docs = [document(1), document(2)]
    if change:
        change(docs)
    net = dspark_network(head, anchor)
    return corrected_logits(net, dspark_blocks(net, docs, ANCHORS))[BLOCK]


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
    "the last label": token(0, 19),
    "token after the block": token(0, 20),
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


@pytest.mark.parametrize(("head", "anchor"), KINDS)
def test_forbidden_input_changes_no_bit(head: str, anchor: bool) -> None:
    plain = logits_after(head, anchor, None)
    changed = [name for name, change in FORBIDDEN.items() if not torch.equal(logits_after(head, anchor, change), plain)]
    assert changed == []


@pytest.mark.parametrize(("head", "anchor"), KINDS)
def test_allowed_input_changes_every_row(head: str, anchor: bool) -> None:
    plain = logits_after(head, anchor, None)
    for name, change in ALLOWED.items():
        difference = (logits_after(head, anchor, change) - plain).abs().amax(dim=1)
        assert (difference > 1e-3).all(), name


@pytest.mark.parametrize("label", [0, 1, 2])
@pytest.mark.parametrize(("head", "anchor"), KINDS)
def test_a_label_reaches_the_rows_behind_it_only(head: str, anchor: bool, label: int) -> None:
    """The next row alone, or with a state every later one."""
    plain = logits_after(head, anchor, None)
    changed = logits_after(head, anchor, token(0, 16 + label))
    assert torch.equal(changed[: label + 1], plain[: label + 1])
    later = (changed[label + 1 :] - plain[label + 1 :]).abs().amax(dim=1)
    assert later[0] > 1e-3
    assert (later > 1e-5).all() if head == "rnn" else not later[1:].any()
