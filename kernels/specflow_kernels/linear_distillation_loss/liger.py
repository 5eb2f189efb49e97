"""Liger's fused linear losses, to be measured against: each gives one of the terms, as the mean over rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def cross_entropy(inputs: dict[str, Any]) -> Callable[..., Tensor]:
    """The drafter's half of the operator, without the teacher. Raises ``ValueError`` without labels."""
    from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss

    if inputs.get("labels_M") is None or inputs.get("multiplier", 1.0) != 1.0:
        raise ValueError("takes labels and logits without a multiplier")
    loss = LigerFusedLinearCrossEntropyLoss(softcap=inputs.get("soft_cap"))

    def run(hidden_MH: Tensor, head_VH: Tensor, *, labels_M: Tensor, **_: Any) -> Tensor:
        out: Tensor = loss(head_VH, hidden_MH, labels_M)
        return out

    return run


def divergence(inputs: dict[str, Any]) -> Callable[..., Tensor]:
    """``KL(teacher || drafter)``: the generalised Jensen-Shannon divergence at 0.

    Raises ``ValueError`` for logits that are not the plain product.
    """
    from liger_kernel.transformers.fused_linear_jsd import LigerFusedLinearJSD

    if inputs.get("teacher_MT") is None or inputs.get("soft_cap") is not None or inputs.get("multiplier", 1.0) != 1.0:
        raise ValueError("takes a teacher and logits without soft cap and multiplier")
    loss = LigerFusedLinearJSD(jsd_beta=0.0)
    teacher_head = inputs["head_VH"] if inputs.get("teacher_head_UT") is None else inputs["teacher_head_UT"]
    ids = inputs.get("draft_ids_V")
    restricted = teacher_head if ids is None else teacher_head[ids]  # once, not in the time that is measured

    def run(hidden_MH: Tensor, head_VH: Tensor, *, teacher_MT: Tensor, **_: Any) -> Tensor:
        out: Tensor = loss(hidden_MH, head_VH, teacher_MT, restricted, None)
        return out

    return run
