"""Which rows count as the target's own next token."""

from __future__ import annotations

import torch

from specflow.features.agreement import agreement


def test_a_hair_below_the_largest_logit_is_a_near_tie() -> None:
    # Row 1: mean 4.925, so 5 % of the distance to the largest is 0.254 and the gap of 0.3 is no tie.
    logits_NV = torch.tensor(
        [[10.0, 0.0, 0.0, 0.0], [10.0, 9.7, 0.0, 0.0], [10.0, 9.0, 0.0, 0.0], [0.0, 10.0, 0.0, 0.0]]
    )
    assert agreement(logits_NV, torch.tensor([0, 1, 1, 1])) == (2, 0)
    logits_NV[1, 1] = 9.8  # mean 4.95: 5 % of 5.05 is 0.2525, the gap 0.2
    assert agreement(logits_NV, torch.tensor([0, 1, 1, 1])) == (2, 1)
    assert agreement(logits_NV.bfloat16(), torch.tensor([0, 0, 0, 1])) == (4, 0)
