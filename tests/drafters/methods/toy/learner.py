"""The toy in training: two terms, one whose denominator only a forward pass knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from specflow.drafters.toy.network import ToyNetwork
from torch import Tensor

from specflow.drafters.cross_entropy import target_cross_entropy
from specflow.drafters.training import Counts, Ends, Learner, Progress, Source, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    feature_NH: Tensor
    anchor_N: Tensor
    labels_Nm: Tensor
    valid_Nm: Tensor


def rows_of(sources: Sequence[Source], proposals: int) -> Rows | None:
    parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for source in sources:
        for anchor in source.anchors.tolist():
            wanted = torch.arange(anchor + 1, anchor + 1 + proposals)
            inside = wanted < source.token_ids_T.numel()
            index = wanted.clamp(max=source.token_ids_T.numel() - 1)
            feature = source.features_TKH[anchor - 1, -1].float()
            valid = (source.supervised_T[index] & inside).long().cumprod(0).bool()
            parts.append((feature, source.token_ids_T[anchor], source.token_ids_T[index], valid))
    if not parts:
        return None
    feature, anchor_ids, labels, valid = (torch.stack(column) for column in zip(*parts, strict=True))
    return Rows(feature_NH=feature, anchor_N=anchor_ids, labels_Nm=labels, valid_Nm=valid)


class ToyLearner(Learner):
    network: ToyNetwork

    def __init__(self, network: ToyNetwork, ends: Ends, *, sureness: float) -> None:
        self.network, self._ends, self._sureness = network, ends, sureness

    def weights(self, progress: Progress) -> Mapping[str, float]:
        return {"likelihood": 1.0, "sure": self._sureness * progress.share}

    def prepare(self, sources: Sequence[Source]) -> Rows | None:
        return rows_of(sources, len(self.network.maps))

    def counts(self, batch: Rows) -> Counts:
        rows = batch.anchor_N.numel()
        return Counts(anchors=rows, labels=int(batch.valid_Nm.sum()), context_rows=rows)

    def objective(self, batch: Rows, progress: Progress) -> Sequence[Term]:
        hidden = self.network(batch.feature_NH, self._ends.embed(batch.anchor_N))[batch.valid_Nm]
        rows = self._ends.rows(batch.labels_Nm, batch.valid_Nm)[batch.valid_Nm]
        losses = target_cross_entropy(hidden, self._ends.head_RH, rows)
        sure = torch.exp(-losses.detach())
        return [
            Term("likelihood", losses.sum(), torch.tensor(float(losses.numel()))),
            Term("sure", (sure * losses).sum(), sure.sum()),
        ]
