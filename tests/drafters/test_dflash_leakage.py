"""METHODS 9.1: what inference could not have never changes a logit, bit for bit; what it has does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from specflow.drafters.dflash.network import DFlashNetwork
from tests.drafters.dflash2_helpers import network2
from tests.drafters.helpers import Doc, blocks_of, document, network, tables, training_logits

torch.set_num_threads(1)
ANCHORS = [[9, 15, 24], [12, 20]]
BLOCK = 1  # of document 0, anchored at 15
Change = Callable[[list[Doc]], None]


NETWORKS: dict[str, Callable[[], DFlashNetwork]] = {
    "dflash": network,
    "dflash with a window": lambda: network(sliding_window=6, sliding_layers=[0, 1]),
    "dflash2": network2,
    "dflash2 of three taps": lambda: network2(conv_kernel_size=3),
}


def logits_after(change: Change | None, made: str = "dflash") -> torch.Tensor:
    docs = [document(1), document(2)]
    if change:
        change(docs)
    embedding, head = tables()
    return training_logits(NETWORKS[made](), blocks_of(docs, ANCHORS), embedding, head)[BLOCK]


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


@pytest.mark.parametrize("made", NETWORKS)
@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden_input_changes_no_bit(name: str, made: str) -> None:
    assert torch.equal(logits_after(FORBIDDEN[name], made), logits_after(None, made))


@pytest.mark.parametrize("made", NETWORKS)
@pytest.mark.parametrize("name", ALLOWED)
def test_allowed_input_changes_every_row(name: str, made: str) -> None:
    if name == "first feature" and made == "dflash with a window":
        pytest.skip("that is outside the window, see below")
    difference = (logits_after(ALLOWED[name], made) - logits_after(None, made)).abs().amax(dim=1)
    assert (difference > 1e-3).all()


def test_what_lies_before_the_window_changes_no_bit() -> None:
    """Two layers with a window of six positions, block anchored at 15: row 1 is at 16, its keys at 11 .. 16. Every
    layer reads the same context, so nothing older comes in by the other layer; row 0 of the block reads from 10 on."""
    made, before = "dflash with a window", logits_after(None, "dflash with a window")
    assert torch.equal(logits_after(feature(0, 9), made), before)
    assert (logits_after(feature(0, 10), made) != before).any()
    one = network(sliding_window=6, sliding_layers=[0], num_layers=1)
    embedding, head = tables()

    def single(change: Change | None) -> torch.Tensor:
        docs = [document(1), document(2)]
        if change:
            change(docs)
        return training_logits(one, blocks_of(docs, ANCHORS), embedding, head)[BLOCK]

    for row in range(4):  # the row of proposal row + 1, whose oldest key is at 15 + row + 1 - 5
        oldest = 15 + (row + 1) - 5
        assert torch.equal(single(feature(0, oldest - 1))[row], single(None)[row])
        assert (single(feature(0, oldest))[row] - single(None)[row]).abs().max() > 1e-3


def test_a_causal_block_hides_its_later_rows() -> None:
    """Masks are equal, so that the last row is left out by making blocks shorter: earlier rows do not notice."""
    embedding, head = tables()
    for causal in (True, False):
        long, short = (
            training_logits(
                network(causal_block=causal, block_size=size), blocks_of([document(1)], [[9]], size), embedding, head
            )[0]
            for size in (5, 4)
        )
        same = torch.allclose(long[:3], short, atol=1e-4)
        assert same == causal
