"""Rounds of many texts side by side: DFlash's walk with corrected choices."""

from __future__ import annotations

from torch import Tensor

from specflow.drafters.dflash.walk import DFlashWalk, JudgedRows
from specflow.drafters.dspark.agreement import agreement
from specflow.drafters.dspark.network import DSparkNetwork


class DSparkWalk(DFlashWalk):
    """Free-running: only the proposals before the first wrong one count, and those are the text."""

    _network: DSparkNetwork

    def _agree(self, rows: JudgedRows) -> Tensor:
        right = agreement(self._network, self._ends, rows.hidden_NMH, rows.anchor_ids_N, rows.labels_NM, rows.valid_NM)
        return rows.spread(right)
