"""Cross-entropy through a frozen head, without ever holding rows x vocabulary.

Legend: M rows, H hidden size, V vocabulary (or a restricted list of it).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_LOGITS = 1 << 22
"""Logits held at once: 16 MB in fp32, three times that at the peak."""


class _TargetCrossEntropy(torch.autograd.Function):
    """``-sum_v p_v log softmax(hidden @ head.T)_v`` per row, ``p = (1 - share) * onehot(label) + share * teacher``.

    The teacher's distribution is ``softmax(teacher_hidden @ head.T)``.

    The head is frozen, so the gradient of a row's loss for its hidden vector is known in the forward pass and is
    all that is kept: two products instead of the three of recomputation, memory ``M * H`` plus one chunk.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_MH: Tensor,
        head_VH: Tensor,
        labels_M: Tensor,
        teacher_MH: Tensor | None,
        share: float,
        chunk_rows: int,
    ) -> Tensor:
        wide = torch.promote_types(head_VH.dtype, torch.float32)
        losses = hidden_MH.new_empty(hidden_MH.shape[0], dtype=wide)
        gradient = torch.empty_like(hidden_MH) if ctx.needs_input_grad[0] else None
        for start in range(0, hidden_MH.shape[0], chunk_rows):
            rows = slice(start, start + chunk_rows)
            label = labels_M[rows].unsqueeze(1)
            log_q = _logits(hidden_MH[rows], head_VH).log_softmax(dim=1, dtype=wide)
            reached = log_q.gather(1, label).squeeze(1) * (1.0 - share)
            soft = None
            if teacher_MH is not None and share > 0:
                soft = _logits(teacher_MH[rows], head_VH).softmax(dim=1, dtype=wide)
                reached += torch.linalg.vecdot(soft, log_q) * share
            losses[rows] = -reached
            if gradient is not None:
                slope = log_q.exp_()
                slope.scatter_add_(1, label, slope.new_full(label.shape, share - 1.0))
                if soft is not None:
                    slope.sub_(soft, alpha=share)
                gradient[rows] = (slope.to(head_VH.dtype) @ head_VH).to(gradient.dtype)
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return losses

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_losses: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad_losses.unsqueeze(1).to(gradient.dtype), None, None, None, None, None


def _logits(hidden_MH: Tensor, head_VH: Tensor) -> Tensor:
    return hidden_MH.to(head_VH.dtype) @ head_VH.T


def target_cross_entropy(
    hidden_MH: Tensor,
    head_VH: Tensor,
    labels_M: Tensor,
    *,
    teacher_MH: Tensor | None = None,
    share: float = 0.0,
    chunk_rows: int | None = None,
) -> Tensor:
    """``[M]`` fp32 cross-entropies against ``(1 - share) * onehot(label) + share * softmax(teacher @ head.T)``.

    ``teacher_MH``: the target's hidden states after its final norm at the rows that predict the labels; no gradient
    reaches it. Both distributions are over the rows of ``head_VH``. Differentiable once, with respect to ``hidden_MH``
    only. The weighting of rows is left to the caller. Raises ``ValueError`` if a share above 0 has no
    teacher.
    """
    if share > 0 and teacher_MH is None:
        raise ValueError(f"a share of {share} of soft targets needs the teacher's hidden states")
    rows = chunk_rows or max(1, CHUNK_LOGITS // head_VH.shape[0])
    kind = hidden_MH.device.type
    if torch.is_autocast_enabled(kind):
        head_VH = head_VH.to(torch.get_autocast_dtype(kind))  # once, not for every chunk
    apply: Any = _TargetCrossEntropy.apply
    with torch.autocast(kind, enabled=False):
        out: Tensor = apply(hidden_MH, head_VH, labels_M, teacher_MH, share, rows)
    return out
