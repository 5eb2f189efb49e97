"""Which proposals the target accepts, and the token it adds (METHODS 1)."""

from __future__ import annotations

import torch
from specflow_kernels.accept_greedy import accept_greedy
from torch import Tensor


def verify_greedy_chain(logits_RV: Tensor, draft_m: Tensor) -> tuple[int, int]:
    """``(accepted, bonus)`` of one chain. Row 0 belongs to the anchor and judges the first proposal.

    R = m + 1 rows. A proposal is accepted while it is the row's argmax; ties go to the lowest id.
    ``bonus`` is the target's token after the last accepted proposal: correction or bonus.
    """
    accepted_B, bonus_B = accept_greedy(draft_m.unsqueeze(0), logits_RV.argmax(dim=-1).unsqueeze(0))
    accepted, bonus = torch.cat([accepted_B, bonus_B]).tolist()  # the round's one synchronisation
    return accepted, bonus
