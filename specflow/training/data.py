"""Documents with features, as training sees them; and which of them a step reads.

Legend: T tokens, K layers of the drafter, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specflow.config.drafter import TrainParams
from specflow.drafters.anchors import document_order, legal_anchors, sample_anchors
from specflow.drafters.training import Source, Text

MEMORY_LIMIT = 2 << 30
"""Bytes of features kept in memory; what lies beyond is read when needed."""


class StoredDocument(Text, Protocol):
    """See ``specflow.features.document.Document``."""

    @property
    def kind(self) -> str: ...
    @property
    def last_hidden_TH(self) -> Tensor: ...


class FeatureSource(Protocol):
    """What training needs of ``specflow.features.reader.FeatureReader``."""

    def __len__(self) -> int: ...
    def indices(self, split: str | None = None) -> list[int]: ...
    def document(self, position: int) -> StoredDocument: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingDocument:
    index: int
    kind: str
    token_ids_T: Tensor
    supervised_T: Tensor
    features_TKH: Tensor
    """Only the drafter's layers; the dtype they are stored in."""
    last_hidden_TH: Tensor | None = None
    """Kept where the method asks for it."""


class Documents:
    """Documents of a source by position, with the drafter's layers only; kept in memory up to ``limit`` bytes."""

    def __init__(
        self, source: FeatureSource, *, columns: Sequence[int], limit: int = MEMORY_LIMIT, last_hidden: bool = False
    ) -> None:
        self._source, self._last_hidden = source, last_hidden
        self._columns = torch.tensor(list(columns), dtype=torch.int64)  # also of none
        self._kept: dict[int, TrainingDocument] = {}
        self._room = limit
        self.bytes_at_most = limit
        """Of features kept in memory."""

    def get(self, position: int) -> TrainingDocument:
        if position in self._kept:
            return self._kept[position]
        stored = self._source.document(position)
        made = TrainingDocument(
            index=stored.index,
            kind=stored.kind,
            token_ids_T=stored.token_ids_T.clone(),
            supervised_T=stored.supervised_T.clone(),
            features_TKH=stored.features_TKH.index_select(1, self._columns),
            last_hidden_TH=stored.last_hidden_TH.clone() if self._last_hidden else None,
        )
        size = sum(t.numel() * t.element_size() for t in (made.features_TKH, made.last_hidden_TH) if t is not None)
        if size <= self._room:
            self._room -= size
            self._kept[position] = made
        return made


def documents_of_step(step: int, *, count: int, per_step: int, seed: int) -> list[tuple[int, int]]:
    """``(epoch, place)`` of the documents of 0-based ``step``: the epochs' permutations, one after the other."""
    chosen: list[tuple[int, int]] = []
    orders: dict[int, list[int]] = {}
    for index in range(step * per_step, (step + 1) * per_step):
        epoch, place = divmod(index, count)
        if epoch not in orders:
            orders[epoch] = document_order(count, seed=seed, epoch=epoch)
        chosen.append((epoch, orders[epoch][place]))
    return chosen


def share_of_rank(chosen: Sequence[tuple[int, int]], *, rank: int, ranks: int) -> list[tuple[int, int]]:
    """The part of a step that one rank reads: in order, and over all ranks exactly ``chosen``."""
    return list(chosen[len(chosen) * rank // ranks : len(chosen) * (rank + 1) // ranks])


def sources_of_step(
    documents: Documents, train: Sequence[int], params: TrainParams, *, step: int, rank: int = 0, ranks: int = 1
) -> list[Source]:
    """What one rank trains on in a step: a pure function of the arguments."""
    chosen = documents_of_step(step, count=len(train), per_step=params.documents_per_step, seed=params.seed)
    return [
        source_of(documents.get(train[place]), anchors=params.anchors_per_document, seed=params.seed, epoch=epoch)
        for epoch, place in share_of_rank(chosen, rank=rank, ranks=ranks)
    ]


def source_of(document: TrainingDocument, *, anchors: int, seed: int, epoch: int) -> Source:
    """A document and the anchors it contributes in this epoch."""
    return Source(
        token_ids_T=document.token_ids_T,
        supervised_T=document.supervised_T,
        features_TKH=document.features_TKH,
        last_hidden_TH=document.last_hidden_TH,
        anchors=sample_anchors(document.supervised_T, anchors, seed=seed, epoch=epoch, document=document.index),
        key=(seed, epoch, document.index),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How a corpus and the training settings fit together; sums over its documents."""

    documents: int
    tokens: int
    supervised: int
    legal_anchors: int
    documents_without_anchor: int

    @classmethod
    def of(cls, documents: Documents, positions: Sequence[int]) -> Coverage:
        found = [documents.get(p) for p in positions]
        legal = [int(legal_anchors(d.supervised_T).numel()) for d in found]
        return cls(
            documents=len(found),
            tokens=sum(d.token_ids_T.numel() for d in found),
            supervised=sum(int(d.supervised_T.sum()) for d in found),
            legal_anchors=sum(legal),
            documents_without_anchor=sum(n == 0 for n in legal),
        )
