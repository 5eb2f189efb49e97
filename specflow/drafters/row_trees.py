"""Trees of a drafter whose rows do not depend on the tokens drafted before them: one pass serves the whole tree.

Legend: m rows (proposals of a chain), V vocabulary, b nodes.
"""

from __future__ import annotations

import torch
from torch import Tensor


class RowTree:
    """What follows a node depends on its depth alone; nothing follows the last row's."""

    def __init__(self, logits_mV: Tensor) -> None:
        log_q_mV = logits_mV.float().log_softmax(dim=-1)
        self._log_q_dV = torch.cat((log_q_mV, log_q_mV.new_full((1, log_q_mV.shape[1]), float("-inf"))))
        self._depths = torch.zeros(1, dtype=torch.int64)

    def first(self) -> Tensor:
        """``[V]`` log q of the token after the anchor."""
        return self._log_q_dV[0]

    def expand(self, parents_b: Tensor) -> Tensor:
        """See ``specflow.drafters.base.Expands``."""
        depths_b = (self._depths[parents_b] + 1).clamp_(max=len(self._log_q_dV) - 1)
        self._depths = torch.cat((self._depths, depths_b))
        return self._log_q_dV[depths_b]
