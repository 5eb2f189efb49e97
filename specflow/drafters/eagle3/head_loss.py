"""The loss of all depths through the draft head, a few predicted tokens at a time: rows x vocabulary never exists.

The target's distribution of a token is computed once and compared with the drafter's at every depth that predicts it.
The sum over all rows is one number, so its gradient for the hidden rows and for the head is known up to a factor in the
forward pass; no product is made twice, and nothing of the size of the logits is kept.

Legend: P predicted tokens, c of them at a time, L depths, M = L * N rows of all starts, H hidden size, D draft
vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specflow.drafters.eagle3.distances import Distance

CHUNK_LOGITS = 1 << 23
"""The drafter's logits held at once: 32 MB in fp32. Every chunk adds to the gradient of the whole head."""
CACHED_LOGITS = 1 << 17
"""Of them, those that one pass of the softmax and of the slopes goes over: 512 KB in fp32."""


def head_loss(
    hidden_MH: Tensor,
    head_DH: Tensor,
    rows_PL: Tensor,
    weights_L: Tensor,
    *,
    teacher_PH: Tensor,
    teacher_head_DH: Tensor,
    labels_P: Tensor,
    distance: Distance,
    chunk_tokens: int | None = None,
) -> Tensor:
    """Sum of ``weight of the depth * distance`` over all tokens and depths, at least fp32.

    ``rows_PL``: the row that predicts token p at depth i, -1 for none; no row is named twice. ``labels_P``: rows of the
    head, which ``ce`` reads. Differentiable once with respect to ``hidden_MH`` and ``head_DH``.
    """
    kind = hidden_MH.device.type
    tokens = chunk_tokens or max(1, CHUNK_LOGITS // (rows_PL.shape[1] * head_DH.shape[0]))
    apply: Any = _HeadLoss.apply
    narrow = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    with torch.autocast(kind, enabled=False):
        out: Tensor = apply(
            hidden_MH, head_DH, rows_PL, weights_L, teacher_PH, teacher_head_DH, labels_P, distance, tokens, narrow
        )
    return out


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_MH: Tensor,
        head_DH: Tensor,
        rows_PL: Tensor,
        weights_L: Tensor,
        teacher_PH: Tensor,
        teacher_head_DH: Tensor,
        labels_P: Tensor,
        distance: Distance,
        tokens: int,
        narrow: torch.dtype | None,
    ) -> Tensor:
        wide = torch.promote_types(head_DH.dtype, torch.float32)
        weights_L = weights_L.to(wide)
        head, taught = (table.to(narrow or table.dtype) for table in (head_DH, teacher_head_DH))
        for_hidden, for_head = ctx.needs_input_grad[:2]
        hidden_grad = torch.zeros_like(hidden_MH) if for_hidden else None
        head_grad = torch.zeros_like(head_DH, dtype=wide) if for_head else None
        total = hidden_MH.new_zeros((), dtype=wide)
        # Products go into the same memory again and again: new pages for each would cost as much as a softmax.
        depths, most = rows_PL.shape[1], min(tokens, rows_PL.shape[0])
        logits_rD, taught_cD = head.new_empty(most * depths, head.shape[0]), taught.new_empty(most, head.shape[0])
        for first in range(0, rows_PL.shape[0], tokens):
            here = slice(first, first + tokens)
            rows_cL = rows_PL[here]
            there_cL = rows_cL >= 0
            read = hidden_MH[rows_cL.clamp_min(0).flatten()].to(head.dtype)
            slope = torch.mm(read, head.T, out=logits_rD[: len(read)])  # logits until the next line but one
            p_cD = torch.mm(teacher_PH[here].to(taught.dtype), taught.T, out=taught_cD[: len(rows_cL)])
            loss_cL = _losses_and_slopes(slope.view(*rows_cL.shape, -1), p_cD, labels_P[here], there_cL, distance, wide)
            weights_cL = torch.where(there_cL, weights_L, 0.0)
            total += (loss_cL * weights_cL).sum()
            # Weights go to the narrow factors, not over the slopes again.
            weights_r1 = weights_cL.flatten().unsqueeze(1)
            if hidden_grad is not None:
                there = there_cL.flatten()
                own = (slope @ head) * weights_r1
                hidden_grad[rows_cL.flatten()[there]] = own[there].to(hidden_grad.dtype)
            if head_grad is not None:
                _add_product(head_grad, slope, (read * weights_r1).to(head.dtype))
        ctx.save_for_backward(hidden_grad, head_grad)
        ctx.head_dtype = head_DH.dtype
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad, head_grad = ctx.saved_tensors
        own = None if hidden_grad is None else hidden_grad * grad.to(hidden_grad.dtype)
        of_head = None if head_grad is None else (head_grad * grad).to(ctx.head_dtype)
        return (own, of_head, *[None] * 8)


def _losses_and_slopes(
    logits_cLD: Tensor, taught_cD: Tensor, labels_c: Tensor, there_cL: Tensor, distance: Distance, wide: torch.dtype
) -> Tensor:
    """``[c, L]`` losses; the logits become their slopes, a few tokens at a time, so that no pass leaves the caches."""
    few = max(1, CACHED_LOGITS // logits_cLD[0].numel()) if logits_cLD.device.type == "cpu" else len(logits_cLD)
    losses = []
    for first in range(0, len(logits_cLD), few):
        now = slice(first, first + few)
        log_q = logits_cLD[now].log_softmax(dim=2, dtype=wide)
        log_p = taught_cD[now].log_softmax(dim=1, dtype=wide)
        loss_cL, slope = distance.of(log_q, log_p, labels_c[now], there_cL[now])
        losses.append(loss_cL)
        logits_cLD[now] = slope
    return torch.cat(losses)


def _add_product(sum_DH: Tensor, left_rD: Tensor, right_rH: Tensor) -> None:
    """Add ``left.T @ right``; the sum over all chunks is not in a narrow dtype."""
    if sum_DH.dtype == left_rD.dtype:
        sum_DH.addmm_(left_rD.T, right_rH)
    else:
        sum_DH.add_(left_rD.T @ right_rH)
