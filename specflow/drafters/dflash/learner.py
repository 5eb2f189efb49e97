"""DFlash in training: blocks at sampled anchors, position-weighted cross-entropy (METHODS 5).

Legend: N blocks, M = B - 1 proposals of a block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from specflow.drafters.block_loss import BlockLoss, BlockSums, block_loss
from specflow.drafters.devices import to_device
from specflow.drafters.dflash.blocks import Blocks, assemble
from specflow.drafters.dflash.forward import hidden_of
from specflow.drafters.dflash.memory import anchors_per_pass, pass_bytes
from specflow.drafters.dflash.network import DFlashNetwork
from specflow.drafters.dflash.objective import total_weight, weights_like
from specflow.drafters.dflash.walk import DFlashWalk
from specflow.drafters.row_losses import PLAIN, LogitShape
from specflow.drafters.training import Counts, Ends, Learner, Progress, Source, Term, Text

TERM = "cross_entropy"
"""The name of the term, whatever the loss: curves of different losses are read by the same name."""
CROSS_ENTROPY = BlockLoss()


class DFlashLearner(Learner):
    """Sources carry the teacher's last hidden states where ``loss`` is taught."""

    network: DFlashNetwork

    def __init__(self, network: DFlashNetwork, ends: Ends, *, decay: float, loss: BlockLoss = CROSS_ENTROPY) -> None:
        self.network, self._ends = network, ends
        self._decay, self._loss = decay, loss
        self.anchors_per_pass = anchors_per_pass(network.geometry)

    def weights(self, progress: Progress) -> Mapping[str, float]:
        return {TERM: 1.0}

    def prepare(self, sources: Sequence[Source]) -> Blocks | None:
        return assemble(sources, block_size=self.network.geometry.block_size)

    def counts(self, batch: Blocks) -> Counts:
        return Counts(
            anchors=batch.visible_N.numel(),
            labels=int(batch.valid_NM.sum()),
            context_rows=batch.context_positions_S.numel(),
        )

    def denominators(self, batch: Blocks, progress: Progress) -> Mapping[str, float]:
        """Anchors are legal only if their first label is supervised, so a batch has weight."""
        if not self._loss.labels_decide:
            return super().denominators(batch, progress)
        return {TERM: float(total_weight(batch.valid_NM, decay=self._decay))}

    def objective(self, batch: Blocks, progress: Progress) -> Sequence[Term]:
        hidden_NMH = hidden_of(self.network, batch, self._ends.embed)
        found = self._sums(hidden_NMH, batch)
        return [Term(TERM, found.numerator, found.denominator)]

    def _sums(self, hidden_NMH: Tensor, batch: Blocks, *, shape: LogitShape = PLAIN, top_k: int = 0) -> BlockSums:
        return block_loss(
            hidden_NMH,
            self._ends.head_RH,
            self._ends.rows(batch.labels_NM, batch.valid_NM),
            batch.valid_NM,
            loss=self._loss,
            weights_NM=weights_like(batch.valid_NM, decay=self._decay),
            teacher_NMH=batch.teacher_NMH if self._loss.taught else None,
            shape=shape,
            top_k=top_k,
        )

    def pass_bytes(self, *, anchors: int, context_rows: int, softmax_rows: int) -> int:
        return pass_bytes(
            self.network.geometry,
            anchors=anchors,
            context_rows=context_rows,
            softmax_rows=softmax_rows,
            soft_targets=self._loss.taught,
        )

    def walk(self, texts: Sequence[Text]) -> DFlashWalk:
        return DFlashWalk(self.network, self._ends, texts)

    def teacher_forced(self, sources: Sequence[Source]) -> tuple[int, int]:
        batch = self.prepare(sources)
        if batch is None:
            return 0, 0
        batch = to_device(batch, self.network.fc.weight.device)
        hidden_NMH = hidden_of(self.network, batch, self._ends.embed)
        right = self._ends.agrees(hidden_NMH[batch.valid_NM], batch.labels_NM[batch.valid_NM])
        return int(right.sum()), right.numel()
