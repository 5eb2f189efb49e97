"""Rounds of many texts side by side: DFlash's walk with corrected choices."""

from __future__ import annotations

from torch import Tensor

from specflow.drafters.dflash.walk import DFlashWalk
from specflow.drafters.dspark.agreement import agreement
from specflow.drafters.dspark.network import DSparkNetwork


class DSparkWalk(DFlashWalk):
    """Free-running: only the proposals before the first wrong one count, and those are the text."""

    _network: DSparkNetwork

    def _agree(self, hidden_NMH: Tensor, anchor_ids_N: Tensor, labels_NM: Tensor, valid_NM: Tensor) -> Tensor:
        return agreement(self._network, self._ends, hidden_NMH, anchor_ids_N, labels_NM, valid_NM)
