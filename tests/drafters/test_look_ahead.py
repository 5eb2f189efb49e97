"""One pass for the blocks of several requests: what each proposes, draws and expands is as if it were alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specflow.drafters.base import LooksAhead, confidence_of
from specflow.drafters.dflash.proposer import DFlashProposer
from tests.drafters.dflash2_helpers import network2, proposer2
from tests.drafters.dspark_helpers import dspark_network, dspark_proposer
from tests.drafters.helpers import committed, document, network, tables

torch.set_num_threads(1)
LENGTHS, ANCHORS = (3, 17, 9, 1), (5, 40, 5, 71)


def dflash(**changes: object) -> DFlashProposer:
    embedding, head = tables()
    return DFlashProposer(network(**changes), embed=lambda i: embedding[i], head=lambda h: h.float() @ head.T)


MAKERS: dict[str, Callable[[], DFlashProposer]] = {
    "dflash": dflash,
    "dflash, windows": lambda: dflash(sliding_window=6, sliding_layers=[0, 1]),
    "dspark": lambda: dspark_proposer(dspark_network("markov")),
    "dspark, no anchor": lambda: dspark_proposer(dspark_network("rnn", anchor=False)),
    "dflash2": lambda: proposer2(network2(conv_kernel_size=3)),
    "dflash2, capped": lambda: proposer2(network2(output_multiplier=1.5, final_logit_softcapping=4.0)),
}


def requests(made: DFlashProposer) -> list[DFlashProposer]:
    """Forks with texts of different lengths behind them."""
    forks = [made, *(made.fork() for _ in LENGTHS[1:])]
    for seed, (fork, length) in enumerate(zip(forks, LENGTHS, strict=True)):
        fork.reset(60)
        fork.extend(committed(document(seed).features[:length]))
    return forks


@pytest.mark.parametrize("name", MAKERS)
def test_together_as_alone(name: str) -> None:
    alone, together = requests(MAKERS[name]()), requests(MAKERS[name]())
    assert isinstance(together[0], LooksAhead)
    for _ in range(2):  # again, after a round that was committed
        type(together[0]).look_ahead(together, ANCHORS)
        for one, other, anchor in zip(alone, together, ANCHORS, strict=True):
            torch.testing.assert_close(other.hidden(anchor), one.hidden(anchor), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(other.logits(anchor), one.logits(anchor), atol=1e-4, rtol=1e-4)
            assert other.propose(anchor).tolist() == one.propose(anchor).tolist()
            sure = confidence_of(one)
            if sure is not None:
                torch.testing.assert_close(confidence_of(other), sure, atol=1e-4, rtol=1e-4)
            first, second = (p.sample(anchor, drawing(anchor)) for p in (one, other))
            assert first.tokens_m.tolist() == second.tokens_m.tolist()
            assert first.q_mV is not None
            assert second.q_mV is not None
            torch.testing.assert_close(second.q_mV, first.q_mV, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(other.begin_tree(anchor), one.begin_tree(anchor), atol=1e-4, rtol=1e-4)
        for fork in (*alone, *together):
            fork.extend(committed(document(9).features[:2]))


def drawing(seed: int) -> Callable[[Tensor], tuple[int, Tensor]]:
    generator = torch.Generator().manual_seed(seed)

    def draw(logits_V: Tensor) -> tuple[int, Tensor]:
        q_V = logits_V.double().softmax(dim=0)
        return int(torch.multinomial(q_V, 1, generator=generator)), q_V

    return draw


@pytest.mark.parametrize("change", ["extend", "reset", "fork", "another anchor"])
def test_what_was_computed_ahead_is_of_that_state_alone(change: str) -> None:
    forks = requests(dflash())
    DFlashProposer.look_ahead(forks, ANCHORS)
    ahead, own = forks[0].logits(ANCHORS[0]), forks[0]
    if change == "fork":
        own = own.fork()
    if change in ("fork", "reset"):
        own.reset(60)
    if change != "another anchor":
        own.extend(committed(document(7).features[:4]))
    anchor = ANCHORS[0] + (change == "another anchor")
    fresh = dflash()
    fresh.reset(60)
    if change in ("extend", "another anchor"):
        fresh.extend(committed(document(0).features[: LENGTHS[0]]))
    if change != "another anchor":
        fresh.extend(committed(document(7).features[:4]))
    assert torch.equal(own.logits(anchor), fresh.logits(anchor))
    assert not torch.allclose(own.logits(anchor), ahead, atol=0.1)


def test_one_request_alone_is_computed_as_before() -> None:
    """The shared pass over one block is the pass of a single request, bit for bit."""
    one, other = requests(dflash())[1], requests(dflash())[1]
    DFlashProposer.look_ahead([other], [ANCHORS[1]])
    assert torch.equal(other.logits(ANCHORS[1]), one.logits(ANCHORS[1]))
