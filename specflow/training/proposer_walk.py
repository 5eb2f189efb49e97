"""The held-out walk of any method: the engine's own proposer, one answer after the other.

A method with a network that can run many answers side by side has a faster walk (``specflow.training.evaluate``);
this one needs nothing but the proposer, and is what the faster ones are tested against.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specflow.drafters.base import Committed, Proposer
from specflow.training.data import TrainingDocument
from specflow.training.evaluation import Evaluation
from specflow.training.walk_sums import WalkSums, answers_of


@torch.no_grad()
def walk_with_proposer(proposer: Proposer, documents: Sequence[TrainingDocument]) -> Evaluation:
    """Counts of the rounds that decoding every answer of ``documents`` would have, without teacher-forced ones."""
    result = Evaluation.of(documents, proposals=proposer.num_proposals)
    for document, sums in zip(documents, result.documents, strict=True):
        for start, last in answers_of(document.supervised_T):
            _answer(proposer, document, sums, start, last)
    return result


def accepted_proposals(draft_m: Tensor, text_T: Tensor) -> int:
    """Leading proposals that are the text's tokens: what a target that gave this text greedily accepts."""
    count = min(draft_m.numel(), text_T.numel())
    return int((draft_m[:count] == text_T[:count]).long().cumprod(0).sum())


def _answer(proposer: Proposer, document: TrainingDocument, sums: WalkSums, anchor: int, last: int) -> None:
    ids = document.token_ids_T
    proposer.reset(last + 1)
    proposer.extend(Committed.of_text(document, 0, anchor))
    while anchor < last:
        accepted = accepted_proposals(proposer.propose(int(ids[anchor])), ids[anchor + 1 : last + 1])
        delivered = sums.add_round(accepted=accepted, remaining=last - anchor)
        proposer.extend(Committed.of_text(document, anchor, anchor + delivered))
        anchor += delivered
