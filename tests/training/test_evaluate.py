"""The batched walk against the engine's proposer, one answer at a time; METHODS 9.3."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specflow.config.drafter import TrainParams
from specflow.drafters.base import Committed
from specflow.drafters.dflash.network import DFlashNetwork
from specflow.drafters.dflash.proposer import DFlashProposer
from specflow.training.data import TrainingDocument
from specflow.training.frozen import FrozenEnds
from specflow.training.walk_sums import WalkSums, answers_of
from tests.training.helpers import documents, ends, fresh, trainer, walked

torch.set_num_threads(1)


def walk_one_by_one(net: DFlashNetwork, docs: list[TrainingDocument], frozen: FrozenEnds) -> tuple[int, int, list[int]]:
    """Rounds, delivered tokens and accepted counts, decoding with the proposer as the engine does."""
    proposer = DFlashProposer(net, embed=frozen.embed, head=frozen.head)
    rounds = delivered = 0
    counts = []
    for d in docs:
        start, last = answers_of(d.supervised_T)[0]
        proposer.reset(len(d.token_ids_T))
        proposer.extend(Committed.of_text(d, 0, start))
        while start < last:
            proposals = proposer.propose(int(d.token_ids_T[start])).tolist()
            text = d.token_ids_T[start + 1 : last + 1].tolist()
            accepted = 0
            while accepted < min(len(proposals), len(text)) and proposals[accepted] == text[accepted]:
                accepted += 1
            counts.append(accepted)
            rounds += 1
            delivered += min(accepted + 1, last - start)
            step = min(accepted + 1, last - start)
            proposer.extend(Committed.of_text(d, start, start + step))
            start += step
    return rounds, delivered, counts


def trained(steps: int, tmp_path: Path) -> tuple[DFlashNetwork, list[TrainingDocument]]:
    _, docs = documents()
    net = fresh()
    params = TrainParams(
        steps=steps, documents_per_step=3, anchors_per_document=40, learning_rate=6e-3, evaluate_every=steps
    )
    trainer(net, params, decay=4.0, docs=docs, scratch=tmp_path, train=range(3), heldout=range(3)).run()
    return net, [docs.get(p) for p in range(3)]


def test_a_memorised_text_is_accepted_whole(tmp_path: Path) -> None:
    net, docs = trained(120, tmp_path)
    rounds, delivered, counts = walk_one_by_one(net, docs, ends())
    # 3 answers; a full round delivers 5, the first token of an answer belongs to no round.
    lengths = [int(d.supervised_T.sum()) - 1 for d in docs]
    assert delivered == sum(lengths)
    assert rounds == sum(-(-n // 5) for n in lengths)
    assert max(counts) == 4
    found = walked(net, docs, ends())
    assert (found.walk.rounds, found.walk.delivered) == (rounds, delivered)
    assert found.to_dict()["acceptance_per_position"] == [1.0] * 4
    assert found.correct == found.judged > 60


def test_the_batched_walk_equals_the_proposers(tmp_path: Path) -> None:
    net, docs = trained(30, tmp_path)
    rounds, delivered, counts = walk_one_by_one(net, docs, ends())
    found = walked(net, docs, ends(torch.arange(0, 97, 2)))
    assert 1.2 < found.walk.tau < 4.5  # neither trivial end, so that the comparison means something
    assert (found.walk.rounds, found.walk.delivered) == (rounds, delivered)
    assert sum(found.walk.accepted) == sum(counts)
    assert {k: s.rounds for k, s in found.by_kind.items()} == {
        kind: walk_one_by_one(net, [d for d in docs if d.kind == kind], ends())[0] for kind in ("a", "b")
    }


def test_walk_counts_by_hand() -> None:
    sums = WalkSums(proposals=3)
    assert sums.add_round(accepted=3, remaining=9) == 4
    assert sums.add_round(accepted=0, remaining=5) == 1
    assert sums.add_round(accepted=2, remaining=4) == 3
    assert sums.add_round(accepted=1, remaining=1) == 1  # the bonus lies beyond the answer
    assert (sums.rounds, sums.delivered, sums.tau) == (4, 9, 2.25)
    found = sums.to_dict()
    assert found["acceptance_per_position"] == pytest.approx([3 / 4, 2 / 3, 1 / 3])
    assert found["conditional_per_position"] == pytest.approx([3 / 4, 2 / 2, 1 / 2])
    double = WalkSums(proposals=3)
    double.add(sums)
    double.add(sums)
    assert double.to_dict()["tau"] == sums.tau
    assert double.rounds == 8
    assert WalkSums(proposals=3).to_dict()["acceptance_per_position"] == [None] * 3


def test_answers_are_supervised_runs_of_two_or_more() -> None:
    mask = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 1, 1], dtype=torch.bool)
    assert answers_of(mask) == [(1, 2), (7, 9)]
    assert answers_of(torch.zeros(4, dtype=torch.bool)) == []
    assert answers_of(torch.ones(3, dtype=torch.bool)) == [(0, 2)]
