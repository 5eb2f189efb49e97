"""DFlash 2 in training: DFlash's loss and the selector's, as terms of their own (METHODS 7).

Legend: N blocks, M proposals of a block, R valid rows of all blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from specflow.drafters.block_loss import BlockLoss
from specflow.drafters.devices import to_device
from specflow.drafters.dflash.blocks import Blocks
from specflow.drafters.dflash.forward import hidden_of
from specflow.drafters.dflash.learner import TERM, DFlashLearner
from specflow.drafters.dflash.objective import total_weight, weights_like
from specflow.drafters.dflash.walk import previous_tokens
from specflow.drafters.dflash2.memory import extra_bytes
from specflow.drafters.dflash2.network import DFlash2Network
from specflow.drafters.dflash2.objective import SelectorLoss, selector_loss
from specflow.drafters.dflash2.walk import DFlash2Walk, judge
from specflow.drafters.training import Ends, Progress, Source, Term, Text

SELECTOR, MISSED = "selector", "selector_missed"
"""The second has no weight: its ratio is the share of positions whose token was no candidate."""


class DFlash2Learner(DFlashLearner):
    network: DFlash2Network

    def __init__(
        self, network: DFlash2Network, ends: Ends, *, decay: float, loss: BlockLoss, selector: SelectorLoss
    ) -> None:
        super().__init__(network, ends, decay=decay, loss=loss)
        self._selector_loss = selector

    def weights(self, progress: Progress) -> Mapping[str, float]:
        if self.network.selector is None:
            return super().weights(progress)
        return {TERM: 1.0, SELECTOR: self._selector_loss.at(progress.share), MISSED: 0.0}

    def denominators(self, batch: Blocks, progress: Progress) -> Mapping[str, float]:
        """The selector's is the weight of all labels, missed ones included: labels alone decide it."""
        found = super().denominators(batch, progress)
        if self.network.selector is None:
            return found
        total = float(total_weight(batch.valid_NM, decay=self._decay))
        return {SELECTOR: total, MISSED: total, **found}

    def objective(self, batch: Blocks, progress: Progress) -> Sequence[Term]:
        g, selector = self.network.geometry, self.network.selector
        hidden_NMH = hidden_of(self.network, batch, self._ends.embed)
        found = self._sums(hidden_NMH, batch, shape=g.shape, top_k=g.selector_top_k)
        terms = [Term(TERM, found.numerator, found.denominator)]
        if selector is None:
            return terms
        valid_NM = batch.valid_NM
        weights_R = weights_like(valid_NM, decay=self._decay)[valid_NM]
        sums = selector_loss(
            selector,
            hidden_NMH[valid_NM],
            self._ends.head_RH,
            candidates_RK=found.candidates_RK,
            candidate_tokens_RK=self._ends.softmax_tokens[found.candidates_RK],
            labels_R=self._ends.rows(batch.labels_NM, valid_NM)[valid_NM],
            previous_R=previous_tokens(batch.anchor_ids_N, batch.labels_NM)[valid_NM],
            weights_R=weights_R,
            shape=g.shape,
            stop_gradient=self._selector_loss.stop_gradient,
        )
        total = weights_R.sum()
        return [*terms, Term(SELECTOR, sums.numerator, total), Term(MISSED, sums.missed, total)]

    def pass_bytes(self, *, anchors: int, context_rows: int, softmax_rows: int) -> int:
        held = super().pass_bytes(anchors=anchors, context_rows=context_rows, softmax_rows=softmax_rows)
        return held + extra_bytes(self.network.geometry, anchors=anchors)

    def walk(self, texts: Sequence[Text]) -> DFlash2Walk:
        return DFlash2Walk(self.network, self._ends, texts)

    def teacher_forced(self, sources: Sequence[Source]) -> tuple[int, int]:
        batch = self.prepare(sources)
        if batch is None:
            return 0, 0
        batch = to_device(batch, self.network.fc.weight.device)
        valid_NM = batch.valid_NM
        hidden_RH: Tensor = hidden_of(self.network, batch, self._ends.embed)[valid_NM]
        previous_R = previous_tokens(batch.anchor_ids_N, batch.labels_NM)[valid_NM]
        right_R = judge(self.network, self._ends, hidden_RH, batch.labels_NM[valid_NM], previous_R).selector_R
        return int(right_R.sum()), right_R.numel()
