"""EAGLE-3 in training: chains from every row of a document, each trained on states of its own (METHODS 4).

Anchors are not read: a row costs little more as a start than as context, and every one of them is a place where
decoding may begin. Legend: N starts, L depths, P predicted tokens, D draft vocabulary, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from specflow.drafters.choice import best_tokens
from specflow.drafters.eagle3.distances import Distance
from specflow.drafters.eagle3.forward import Eagle3Rollout, hidden_of
from specflow.drafters.eagle3.head_loss import head_loss
from specflow.drafters.eagle3.inside import InsideVocabulary
from specflow.drafters.eagle3.memory import pass_bytes
from specflow.drafters.eagle3.network import Eagle3Network
from specflow.drafters.rollouts import Batch, Predicted, assemble
from specflow.drafters.state_walk import StateWalk, teacher_forced
from specflow.drafters.training import Counts, Ends, Learner, Progress, Source, Term, Text

OUTSIDE = "outside_vocabulary"
"""A term without weight: the share of predicted tokens that the draft vocabulary cannot express, and drops."""


class Eagle3Learner(Learner):
    network: Eagle3Network

    def __init__(
        self,
        network: Eagle3Network,
        ends: Ends,
        *,
        depths: int,
        decay: float,
        distance: Distance,
        reference_mask: bool = False,
    ) -> None:
        self.network, self._ends = network, ends
        self._depths, self._distance, self._reference_mask = depths, distance, reference_mask
        self._weights_L = decay ** torch.arange(depths, dtype=torch.float32)

    @cached_property
    def _teacher_head_DH(self) -> Tensor:
        return self._ends.head_rows(self.network.draft_ids_D)

    @cached_property
    def _inside(self) -> InsideVocabulary:
        return InsideVocabulary(self.network.t2d, self._ends)

    def weights(self, progress: Progress) -> Mapping[str, float]:
        outside = {OUTSIDE: 0.0} if self.network.has_own_head else {}
        return {self._distance.kind: 1.0, **outside}

    def prepare(self, sources: Sequence[Source]) -> Batch | None:
        return assemble(sources, depths=self._depths, reference_mask=self._reference_mask)

    def counts(self, batch: Batch) -> Counts:
        rollouts = batch.rollouts
        labels = int((batch.predicted.starts_PL >= 0).sum())
        return Counts(anchors=rollouts.starts_N.numel(), labels=labels, context_rows=rollouts.positions_S.numel())

    def denominators(self, batch: Batch, progress: Progress) -> Mapping[str, float]:
        kept, predicted = int(self._kept(batch.predicted).sum()), batch.predicted.labels_P.numel()
        return {name: float(kept if name != OUTSIDE else predicted) for name in self.weights(progress)}

    def objective(self, batch: Batch, progress: Progress) -> Sequence[Term]:
        """One denominator for all depths, the kept tokens: each of them is predicted once at every depth."""
        hidden_LNH, predicted = hidden_of(self.network, batch.rollouts, self._ends.embed), batch.predicted
        kept_P, device = self._kept(predicted), hidden_LNH.device
        starts_PL = predicted.starts_PL[kept_P]
        depth_L = torch.arange(self._depths, device=device) * hidden_LNH.shape[1]
        total = head_loss(
            hidden_LNH.flatten(0, 1),
            self.network.lm_head.weight if self.network.has_own_head else self._teacher_head_DH,
            torch.where(starts_PL >= 0, starts_PL + depth_L, -1),
            self._weights_L.to(device),
            teacher_PH=predicted.teacher_PH[kept_P],
            teacher_head_DH=self._teacher_head_DH,
            labels_P=self._draft_rows(predicted.labels_P[kept_P]),
            distance=self._distance,
        )
        terms = [Term(self._distance.kind, total, kept_P.sum().to(total))]
        if self.network.has_own_head:
            dropped = (~kept_P).sum().to(total)
            # With a gradient, though zero: a step may hold nothing but dropped tokens.
            terms.append(Term(OUTSIDE, dropped + 0.0 * total, total.new_tensor(float(kept_P.numel()))))
        return terms

    def pass_bytes(self, *, anchors: int, context_rows: int, softmax_rows: int) -> int:
        rows = self._teacher_head_DH.shape[0]
        return pass_bytes(self.network.geometry, rows=context_rows, depths=self._depths, head_rows=rows)

    def walk(self, texts: Sequence[Text]) -> StateWalk:
        return StateWalk(
            Eagle3Rollout(self.network),
            texts,
            [text.features_TKH for text in texts],
            embed=self._ends.embed,
            choose=self._choose,
            steps=self.network.geometry.steps,
            device=self.network.fc.weight.device,
        )

    def teacher_forced(self, sources: Sequence[Source]) -> tuple[int, int]:
        return teacher_forced(
            sources,
            lambda rollouts: hidden_of(self.network, rollouts, self._ends.embed),
            choose=self._choose,
            steps=self.network.geometry.steps,
            device=self.network.fc.weight.device,
        )

    def _choose(self, hidden: Tensor) -> Tensor:
        g, network = self.network.geometry, self.network
        head: Callable[[Tensor], Tensor] = network.lm_head if network.has_own_head else self._ends.head
        width = g.draft_vocab_size or g.vocab_size
        return best_tokens(hidden, head, width=width, ids_D=network.draft_ids_D)

    def _draft_rows(self, labels: Tensor) -> Tensor:
        """Rows of the head; any row for a token that is none, which only ``ce`` would read and drops."""
        ids_D = self.network.draft_ids_D
        return labels if ids_D is None else torch.searchsorted(ids_D, labels).clamp(max=ids_D.numel() - 1)

    def _kept(self, predicted: Predicted) -> Tensor:
        """``[P]``: the target's own choice, and for ``ce`` the label, are in the draft vocabulary."""
        if predicted.kept_P is None:
            if self.network.draft_ids_D is None:
                predicted.kept_P = torch.ones_like(predicted.labels_P, dtype=torch.bool)
                return predicted.kept_P
            kept_P = self._inside(predicted.teacher_PH, predicted.documents)
            predicted.kept_P = kept_P & self.network.t2d[predicted.labels_P] if self._distance.kind == "ce" else kept_P
        return predicted.kept_P
