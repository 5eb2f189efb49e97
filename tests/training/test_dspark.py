"""DSpark in training: METHODS 9.3, and its batched walk against the engine's proposer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.config.drafter import TrainParams
from specflow.drafters.base import Committed
from specflow.drafters.dspark import method
from specflow.drafters.dspark.heads import initialise_heads
from specflow.drafters.dspark.network import DSparkNetwork
from specflow.drafters.dspark.params import Params
from specflow.drafters.dspark.proposer import DSparkProposer
from specflow.training.data import Documents
from specflow.training.evaluate import evaluate
from specflow.training.evaluation import Evaluation
from specflow.training.loop import Trainer
from specflow.training.proposer_walk import walk_with_proposer
from tests.drafters.dspark_helpers import KINDS, dspark_network
from tests.drafters.helpers import tables
from tests.training.helpers import MemorySource, Monitor, ends

torch.set_num_threads(1)
STEPS = 45
"""Enough to memorise two short texts."""


def documents() -> Documents:
    """The teacher's distribution is nearly the text itself."""
    source, (_, head_VH) = MemorySource([20, 23], heldout=0), tables()
    for stored in source.stored:
        stored.last_hidden_TH = (0.7 * head_VH[stored.token_ids_T.roll(-1)]).bfloat16()
    return Documents(source, columns=[0, 1, 2], last_hidden=True)


def trained(head: str, anchor: bool, steps: int, scratch: Path, **changes: Any) -> tuple[DSparkNetwork, Documents]:
    net, docs = dspark_network(head, anchor, num_layers=1).train(), documents()
    initialise_heads(net.markov_head, net.confidence_head, seed=1)
    train = TrainParams(
        steps=steps, documents_per_step=2, anchors_per_document=20, learning_rate=1.5e-2, evaluate_every=steps
    )
    params = Params(method="dspark", block_size=net.geometry.block_size, train=train, **changes)
    Trainer(
        method=method,
        network=net,
        params=params,
        documents=docs,
        scratch=scratch,
        ends=ends(),
        monitor=Monitor(),
        train=range(2),
        heldout=range(2),
    ).run()
    return net, docs


def walked(net: DSparkNetwork, docs: Documents, tokens: torch.Tensor | None = None) -> Evaluation:
    def proposer() -> Any:
        raise AssertionError("DSpark walks side by side")

    learner = method.build_learner(net, ends(tokens), Params(method="dspark"))
    return evaluate(learner, [docs.get(p) for p in range(2)], proposals=4, proposer=proposer)


def proposer_of(net: DSparkNetwork) -> DSparkProposer:
    return DSparkProposer(net, embed=ends().embed, head=ends().head)


def _is_sure(proposer: DSparkProposer, docs: Documents) -> None:
    """The raw confidence was 0 at birth; now everything is accepted, and on the whole it says so."""
    text = docs.get(0)
    proposer.reset(20)
    proposer.extend(Committed.of_text(text, 0, 10))
    proposer.propose(int(text.token_ids_T[10]))
    assert proposer.confidence_m is not None
    assert proposer.confidence_m.mean() > 0.2


@pytest.mark.parametrize(("head", "anchor"), KINDS)
def test_a_memorised_text_is_accepted_whole(tmp_path: Path, head: str, anchor: bool) -> None:
    net, docs = trained(head, anchor, STEPS, tmp_path)
    found = walk_with_proposer(proposer_of(net), [docs.get(p) for p in range(2)])
    lengths = [int(docs.get(p).supervised_T.sum()) - 1 for p in range(2)]
    assert found.walk.delivered == sum(lengths)
    assert found.walk.rounds == sum(-(-n // 5) for n in lengths)
    batched = walked(net, docs)
    assert (batched.walk.rounds, batched.walk.accepted) == (found.walk.rounds, found.walk.accepted)
    assert batched.correct == batched.judged > 40
    _is_sure(proposer_of(net), docs)


@pytest.mark.parametrize(("head", "anchor"), [("markov", False), ("gated", True), ("rnn", True)])
def test_the_batched_walk_equals_the_proposers(tmp_path: Path, head: str, anchor: bool) -> None:
    net, docs = trained(head, anchor, 14, tmp_path)
    found = walk_with_proposer(proposer_of(net), [docs.get(p) for p in range(2)])
    assert 1.1 < found.walk.tau < 4.5  # neither trivial end, so that the comparison means something
    for tokens in (None, torch.arange(0, 97, 2)):
        batched = walked(net, docs, tokens)
        assert batched.walk.to_dict() == found.walk.to_dict()
