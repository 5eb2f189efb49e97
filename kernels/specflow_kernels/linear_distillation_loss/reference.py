"""The terms from whole rows of logits: what the kernels must equal, for any device and floating-point dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow_kernels.linear_distillation_loss.terms import Terms


def linear_distillation_loss_reference(
    hidden_MH: Tensor,
    head_VH: Tensor,
    *,
    labels_M: Tensor | None = None,
    teacher_MT: Tensor | None = None,
    teacher_head_UT: Tensor | None = None,
    draft_ids_V: Tensor | None = None,
    multiplier: float = 1.0,
    soft_cap: float | None = None,
) -> Terms:
    """Arguments as in ``linear_distillation_loss``. Holds several matrices of rows by vocabulary."""
    logits = head_logits(hidden_MH, head_VH, multiplier=multiplier, soft_cap=soft_cap)
    log_q = logits.log_softmax(dim=1)
    choice = lowest_argmax(logits)
    ce = None if labels_M is None else -log_q.gather(1, labels_M.unsqueeze(1)).squeeze(1)
    if teacher_MT is None:
        return Terms(ce, None, None, None, None, choice, None)
    head = head_VH if teacher_head_UT is None else teacher_head_UT
    if draft_ids_V is not None:
        head = head[draft_ids_V]
    with torch.no_grad():
        teacher = head_logits(teacher_MT, head.detach(), multiplier=multiplier, soft_cap=soft_cap)
        log_p = teacher.log_softmax(dim=1)
        p = log_p.exp()
        entropy = -(p * log_p).sum(dim=1)
    q = log_q.exp()
    kl = (p * (log_p - log_q)).sum(dim=1)
    reverse = (q * (log_q - log_p)).sum(dim=1)
    return Terms(ce, kl, reverse, (p - q).abs().sum(dim=1), entropy, choice, lowest_argmax(teacher))


def head_logits(
    hidden_MH: Tensor, head_VH: Tensor, *, multiplier: float = 1.0, soft_cap: float | None = None
) -> Tensor:
    """``[M, V]``, at least fp32: ``cap * tanh(multiplier * hidden @ head.T / cap)``."""
    wide = torch.promote_types(hidden_MH.dtype, torch.float32)
    logits = hidden_MH.to(wide) @ head_VH.to(wide).T * multiplier
    return logits if soft_cap is None else soft_cap * torch.tanh(logits / soft_cap)


def lowest_argmax(logits_MV: Tensor) -> Tensor:
    """``[M]`` int64: the lowest of the largest, -1 for rows with NaN."""
    vocabulary = logits_MV.shape[1]
    largest = logits_MV.amax(dim=1, keepdim=True)
    index = torch.arange(vocabulary, device=logits_MV.device)
    choice = torch.where(logits_MV == largest, index, vocabulary).amin(dim=1)
    return torch.where(largest.squeeze(1).isnan(), -1, choice)
