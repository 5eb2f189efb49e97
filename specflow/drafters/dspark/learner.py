"""DSpark in training (METHODS 6): blocks at sampled anchors, the tokens before each row given.

Legend: N blocks, M proposals of a block, H hidden size, r rank of the correction, R rows of the training softmax.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from specflow.drafters.devices import to_device
from specflow.drafters.dflash.blocks import Blocks, assemble
from specflow.drafters.dflash.forward import hidden_of
from specflow.drafters.dflash.memory import anchors_per_pass
from specflow.drafters.dflash.objective import position_weights, total_weight
from specflow.drafters.dspark.agreement import agreement
from specflow.drafters.dspark.memory import pass_bytes
from specflow.drafters.dspark.network import DSparkNetwork
from specflow.drafters.dspark.objective import confidence_loss, corrected_losses
from specflow.drafters.dspark.walk import DSparkWalk
from specflow.drafters.training import Counts, Ends, Learner, Progress, Source, Term, Text

CROSS_ENTROPY, L1, CONFIDENCE = "cross_entropy", "l1", "confidence"


class DSparkLearner(Learner):
    """``weights``: of the terms by name; ``soft_targets``: share of the teacher in the cross-entropy's target."""

    network: DSparkNetwork

    def __init__(
        self,
        network: DSparkNetwork,
        ends: Ends,
        *,
        decay: float,
        weights: Mapping[str, float],
        detach: bool = True,
        soft_targets: float = 0.0,
    ) -> None:
        self.network, self._ends = network, ends
        self._decay, self._soft_targets, self._detach = decay, soft_targets, detach
        self._weights = {name: weights[name] for name in (CROSS_ENTROPY, L1)}
        if network.confidence_head is not None:
            self._weights[CONFIDENCE] = weights[CONFIDENCE]
        self.anchors_per_pass = anchors_per_pass(network.geometry)

    def weights(self, progress: Progress) -> Mapping[str, float]:
        return self._weights

    def prepare(self, sources: Sequence[Source]) -> Blocks | None:
        g = self.network.geometry
        return assemble(sources, block_size=g.block_size, proposals=g.num_proposals)

    def counts(self, batch: Blocks) -> Counts:
        return Counts(
            anchors=batch.visible_N.numel(),
            labels=int(batch.valid_NM.sum()),
            context_rows=batch.context_positions_S.numel(),
        )

    def denominators(self, batch: Blocks, progress: Progress) -> Mapping[str, float]:
        return dict.fromkeys(self._weights, float(total_weight(batch.valid_NM, decay=self._decay)))

    def objective(self, batch: Blocks, progress: Progress) -> Sequence[Term]:
        head, valid = self.network.markov_head, batch.valid_NM
        teacher_NMH = batch.teacher_NMH
        if teacher_NMH is None:
            raise ValueError("expected the target's last hidden states with the features, found none")
        hidden_NMH = hidden_of(self.network, batch, self._ends.embed)
        embedded_NMr = self.network.embed_before(batch.anchor_ids_N, batch.labels_NM)
        weights_M = position_weights(valid.shape[1] + 1, self._decay).to(valid.device).expand_as(valid)[valid]
        losses = corrected_losses(
            hidden_NMH[valid],
            head.codes(hidden_NMH, embedded_NMr)[valid],
            self._restricted(head.markov_w2.weight),
            self._ends.head_RH,
            self._ends.rows(batch.labels_NM, valid)[valid],
            teacher_NMH[valid],
            weights_M,
            share=self._soft_targets,
        )
        total = weights_M.sum()
        terms = [Term(CROSS_ENTROPY, losses.cross_entropy, total), Term(L1, losses.l1, total)]
        if self.network.confidence_head is not None:
            inputs = (hidden_NMH[valid], embedded_NMr[valid])
            raw_M = self.network.confidence_head(*(x.detach() for x in inputs) if self._detach else inputs)
            terms.append(Term(CONFIDENCE, confidence_loss(raw_M, losses.l1_M, weights_M), total))
        return terms

    def pass_bytes(self, *, anchors: int, context_rows: int, softmax_rows: int) -> int:
        return pass_bytes(self.network.geometry, anchors=anchors, context_rows=context_rows, softmax_rows=softmax_rows)

    def walk(self, texts: Sequence[Text]) -> DSparkWalk:
        return DSparkWalk(self.network, self._ends, texts)

    def teacher_forced(self, sources: Sequence[Source]) -> tuple[int, int]:
        batch = self.prepare(sources)
        if batch is None:
            return 0, 0
        batch = to_device(batch, self.network.fc.weight.device)
        hidden_NMH = hidden_of(self.network, batch, self._ends.embed)
        right = agreement(self.network, self._ends, hidden_NMH, batch.anchor_ids_N, batch.labels_NM, batch.valid_NM)
        return int(right.sum()), right.numel()

    def _restricted(self, table_Vr: Tensor) -> Tensor:
        """Rows of the training softmax: the only ones with a gradient."""
        if self._ends.head_RH.shape[0] == table_Vr.shape[0]:
            return table_Vr
        return table_Vr[self._ends.softmax_tokens.to(table_Vr.device)]
