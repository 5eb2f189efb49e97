"""Weights of a block's positions that follow what the drafter can do (D-PACE, METHODS 8a).

Legend: N blocks, M proposals of a block.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Dpace = Literal["dpace", "dpace_prefix", "dpace_suffix"]


def dpace_weights(q_NM: Tensor, valid_NM: Tensor, *, smoothing: float, form: Dpace = "dpace") -> Tensor:
    """``[N, M]`` without gradient, 0 where not valid; ``q_NM``: the drafter's probability of each label.

    With ``s = (1 - smoothing) q + smoothing`` and ``P_j = s_1 .. s_j``: ``dpace`` is ``W_j``, the sum of ``P_i`` over
    valid ``i >= j``, which is how much a better proposal j lengthens the accepted prefix. The others leave a part out:
    ``dpace_prefix`` is ``P_j``, ``dpace_suffix`` is ``W_j / P_j``.
    """
    q_NM = q_NM.detach()
    smoothed = torch.where(valid_NM, (1.0 - smoothing) * q_NM + smoothing, 1.0)
    prefix = smoothed.cumprod(dim=1) * valid_NM
    if form == "dpace_prefix":
        return prefix
    suffix = prefix.flip(1).cumsum(dim=1).flip(1)
    if form == "dpace":
        return suffix * valid_NM
    return torch.where(valid_NM, suffix / prefix.clamp_min(torch.finfo(prefix.dtype).tiny), 0.0)
