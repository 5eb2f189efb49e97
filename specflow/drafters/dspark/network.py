"""The DSpark draft network: DFlash's backbone, then a head that corrects its logits token by token.

Parameter names are those the serving engine loads.
"""

from __future__ import annotations

from torch import Tensor

from specflow.drafters.dflash.network import DFlashNetwork
from specflow.drafters.dspark.geometry import DSparkGeometry
from specflow.drafters.dspark.heads import ConfidenceHead, SequentialHead, make_head


class DSparkNetwork(DFlashNetwork):
    geometry: DSparkGeometry
    confidence_head: ConfidenceHead | None

    def __init__(self, geometry: DSparkGeometry) -> None:
        super().__init__(geometry)
        self.markov_head: SequentialHead = make_head(geometry)
        self.confidence_head = ConfidenceHead(geometry) if geometry.confidence else None

    def embed_before(self, anchor_ids_N: Tensor, labels_NM: Tensor) -> Tensor:
        """``[N, M, r]``: of the token before each row, if the labels are what is chosen."""
        before_NM = labels_NM.roll(1, dims=1)
        before_NM[:, 0] = anchor_ids_N
        found: Tensor = self.markov_head.markov_w1(before_NM)
        return found
