"""Held-out evaluation without the target: the drafter walks over answers the target gave greedily.

On such a text the target accepts a proposal exactly when it is the text's next token, so the walk visits the
anchors that decoding would visit and its tau is decoding's. Accuracy at random anchors stands beside it: it
flatters, because decoding stops where prediction is hard and starts again there.

Legend: N walks, B rows of a block, M = B - 1 proposals, S context rows of all documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specflow.drafters.anchors import sample_anchors
from specflow.drafters.dflash.attention import Span
from specflow.drafters.dflash.blocks import Source, assemble, block_embeddings, labels_and_validity
from specflow.drafters.dflash.network import Context, DFlashNetwork
from specflow.training.data import TrainingDocument
from specflow.training.evaluation import Evaluation
from specflow.training.frozen import FrozenEnds
from specflow.training.step import hidden_of
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
def evaluate(network: DFlashNetwork, documents: Sequence[TrainingDocument], frozen: FrozenEnds) -> Evaluation:
    """Walk every answer of ``documents``, one block per answer and round, all answers side by side."""
    result = Evaluation.of(documents, proposals=network.geometry.block_size - 1)
    walkers = [_Walker(i, start, last) for i, d in enumerate(documents) for start, last in answers_of(d.supervised_T)]
    if walkers:
        _walk(network, documents, frozen, walkers, result)
    _at_random_anchors(network, documents, frozen, result)
    return result


def _walk(
    network: DFlashNetwork,
    documents: Sequence[TrainingDocument],
    frozen: FrozenEnds,
    walkers: list[_Walker],
    result: Evaluation,
) -> None:
    features = torch.cat([d.features_TKH.float() for d in documents])
    lengths = [d.token_ids_T.numel() for d in documents]
    first_row = torch.tensor([0, *lengths]).cumsum(0).tolist()
    keys, values = network.project_context(features, torch.cat([torch.arange(n) for n in lengths]))
    while walkers:
        spans = tuple(
            Span(context=(first_row[w.document], first_row[w.document] + w.anchor), blocks=(n, n + 1))
            for n, w in enumerate(walkers)
        )
        context = Context(keys=keys, values=values, spans=spans, visible_N=torch.tensor([w.anchor for w in walkers]))
        accepted = _accepted(network, documents, frozen, walkers, context)
        for walker, count in zip(walkers, accepted, strict=True):
            sums = result.documents[walker.document]
            walker.anchor += sums.add_round(accepted=count, remaining=walker.last - walker.anchor)
        walkers = [w for w in walkers if w.anchor < w.last]


def _accepted(
    network: DFlashNetwork,
    documents: Sequence[TrainingDocument],
    frozen: FrozenEnds,
    walkers: Sequence[_Walker],
    context: Context,
) -> list[int]:
    size = network.geometry.block_size
    ids = torch.stack([documents[w.document].token_ids_T[w.anchor] for w in walkers])
    embeds = block_embeddings(
        frozen.embed(ids), frozen.embed(torch.tensor(network.geometry.mask_token_id)), block_size=size
    )
    positions = context.visible_N.unsqueeze(1) + torch.arange(size)
    hidden = network(embeds, positions, context, first_row=1)
    pairs = [
        labels_and_validity(d.token_ids_T, d.supervised_T, torch.tensor([w.anchor]), block_size=size)
        for w in walkers
        for d in (documents[w.document],)
    ]
    labels, valid = torch.cat([p[0] for p in pairs]), torch.cat([p[1] for p in pairs])
    right = torch.zeros(valid.shape, dtype=torch.bool)
    right[valid] = frozen.agrees(hidden[valid], labels[valid])
    counts: list[int] = right.long().cumprod(dim=1).sum(dim=1).tolist()
    return counts


def _at_random_anchors(
    network: DFlashNetwork, documents: Sequence[TrainingDocument], frozen: FrozenEnds, result: Evaluation
) -> None:
    sources = [
        Source(
            token_ids_T=d.token_ids_T,
            supervised_T=d.supervised_T,
            features_TKH=d.features_TKH,
            anchors=sample_anchors(d.supervised_T, TEACHER_FORCED_ANCHORS, seed=0, epoch=0, document=d.index),
        )
        for d in documents
    ]
    blocks = assemble(sources, block_size=network.geometry.block_size)
    if blocks is None:
        return
    hidden = hidden_of(network, blocks, frozen)
    right = frozen.agrees(hidden[blocks.valid_NM], blocks.labels_NM[blocks.valid_NM])
    result.correct, result.judged = int(right.sum()), right.numel()
