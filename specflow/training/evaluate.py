"""Held-out evaluation without the target: the drafter walks over answers the target gave greedily.

On such a text the target accepts a proposal exactly when it is the text's next token, so the walk visits the
anchors that decoding would visit and its tau is decoding's. Accuracy at random anchors stands beside it: it
flatters, because decoding stops where prediction is hard and starts again there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from specflow.drafters.anchors import sample_anchors
from specflow.drafters.base import Proposer
from specflow.drafters.training import ComparedWalk, Learner, Source, Walk
from specflow.training.data import TrainingDocument
from specflow.training.evaluation import Evaluation
from specflow.training.proposer_walk import walk_with_proposer
from specflow.training.walk_sums import answers_of

TEACHER_FORCED_ANCHORS = 8
"""Random anchors per document for the accuracy beside the walk."""


@dataclass(slots=True)
class _Walker:
    document: int
    anchor: int
    last: int
    """Position of the last token of the answer."""


@torch.no_grad()
def evaluate(
    learner: Learner, documents: Sequence[TrainingDocument], *, proposals: int, proposer: Callable[[], Proposer]
) -> Evaluation:
    """Walk every answer of ``documents``: all side by side if the method can, else one after the other.

    ``proposals``: m of a round. ``proposer`` makes the engine's own, over the learner's weights.
    """
    batched = learner.walk(documents)
    if batched is None:
        result = walk_with_proposer(proposer(), documents)
    else:
        result = Evaluation.of(documents, proposals=proposals)
        _walk(batched, documents, result)
        if isinstance(batched, ComparedWalk):
            result.figures = batched.figures()
            for name, other in batched.alternatives().items():
                apart = Evaluation.of(documents, proposals=proposals)
                _walk(other, documents, apart)
                result.alternatives[name] = apart.walk
    result.correct, result.judged = learner.teacher_forced(_at_random_anchors(documents))
    return result


def _walk(walk: Walk, documents: Sequence[TrainingDocument], result: Evaluation) -> None:
    walkers = [_Walker(i, start, last) for i, d in enumerate(documents) for start, last in answers_of(d.supervised_T)]
    while walkers:
        accepted = walk.accepted([(w.document, w.anchor) for w in walkers])
        for walker, count in zip(walkers, accepted, strict=True):
            sums = result.documents[walker.document]
            walker.anchor += sums.add_round(accepted=count, remaining=walker.last - walker.anchor)
        walkers = [w for w in walkers if w.anchor < w.last]


def _at_random_anchors(documents: Sequence[TrainingDocument]) -> list[Source]:
    return [
        Source(
            token_ids_T=d.token_ids_T,
            supervised_T=d.supervised_T,
            features_TKH=d.features_TKH,
            last_hidden_TH=d.last_hidden_TH,
            anchors=sample_anchors(d.supervised_T, TEACHER_FORCED_ANCHORS, seed=0, epoch=0, document=d.index),
        )
        for d in documents
    ]
