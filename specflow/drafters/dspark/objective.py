"""The DSpark losses (METHODS 6) of corrected logits, without ever holding rows x vocabulary.

Legend: M rows, H hidden size, r rank of the correction, R rows of the (restricted) softmax.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from specflow.drafters.row_losses import CHUNK_LOGITS


class Losses(NamedTuple):
    cross_entropy: Tensor
    """Scalar, ``sum w CE``."""
    l1: Tensor
    """Scalar, ``sum w L1``."""
    l1_M: Tensor
    """Of every row, without gradient and weight."""


def corrected_losses(
    hidden_MH: Tensor,
    code_Mr: Tensor,
    table_Rr: Tensor,
    head_RH: Tensor,
    labels_M: Tensor,
    teacher_MH: Tensor,
    weights_M: Tensor,
    *,
    share: float = 0.0,
    chunk_rows: int | None = None,
) -> Losses:
    """Cross-entropy and L1 of ``q = softmax(hidden @ head.T + code @ table.T)``, weighted sums over the rows.

    The teacher is ``p = softmax(teacher @ head.T)``, without gradient. ``CE = -sum_v t_v log q_v`` with
    ``t = (1 - share) * onehot(label) + share * p``; ``L1 = sum_v |p_v - q_v|``. Differentiable once, with respect to
    ``hidden_MH``, ``code_Mr`` and ``table_Rr``.
    """
    rows = chunk_rows or max(1, CHUNK_LOGITS // head_RH.shape[0])
    kind = hidden_MH.device.type
    if torch.is_autocast_enabled(kind):
        head_RH = head_RH.to(torch.get_autocast_dtype(kind))  # once, not for every chunk
    apply: Any = _CorrectedLosses.apply
    with torch.autocast(kind, enabled=False):
        found: tuple[Tensor, Tensor, Tensor] = apply(
            hidden_MH, code_Mr, table_Rr, head_RH, labels_M, teacher_MH.detach(), weights_M, share, rows
        )
    return Losses(*found)


def confidence_loss(raw_M: Tensor, l1_M: Tensor, weights_M: Tensor) -> Tensor:
    """``sum w BCE(sigmoid(raw), 1 - L1 / 2)``: the mean acceptance of exact sampling is the label."""
    label_M = (1.0 - l1_M.detach() / 2).clamp(0.0, 1.0)
    loss: Tensor = F.binary_cross_entropy_with_logits(raw_M, label_M.to(raw_M.dtype), weight=weights_M, reduction="sum")
    return loss


class _CorrectedLosses(torch.autograd.Function):
    """Both sums' gradients are known in the forward pass and are all that is kept: ``M * (H + r) + R * r`` each.

    Computing them again in the backward pass would cost two vocabulary-sized products more.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_MH: Tensor,
        code_Mr: Tensor,
        table_Rr: Tensor,
        head_RH: Tensor,
        labels_M: Tensor,
        teacher_MH: Tensor,
        weights_M: Tensor,
        share: float,
        chunk_rows: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = head_RH.dtype
        wide = torch.promote_types(dtype, torch.float32)
        ctx.dtypes = (hidden_MH.dtype, code_Mr.dtype, table_Rr.dtype)
        table_Rr = table_Rr.to(dtype)
        inputs = (hidden_MH, code_Mr, table_Rr)
        gradients = [_Gradients(inputs, head_RH, wide) for _ in range(2)] if any(ctx.needs_input_grad[:3]) else []
        cross_entropy, l1 = (hidden_MH.new_zeros((), dtype=wide) for _ in range(2))
        l1_M = hidden_MH.new_empty(hidden_MH.shape[0], dtype=wide)
        for start in range(0, hidden_MH.shape[0], chunk_rows):
            rows = slice(start, start + chunk_rows)
            label, weight = labels_M[rows].unsqueeze(1), weights_M[rows].to(wide)
            logits = (hidden_MH[rows].to(dtype) @ head_RH.T).to(wide)
            logits += code_Mr[rows].to(dtype) @ table_Rr.T
            log_q = logits.log_softmax(dim=1)
            del logits
            p = (teacher_MH[rows].to(dtype) @ head_RH.T).softmax(dim=1, dtype=wide)
            reached = log_q.gather(1, label).squeeze(1) * (1.0 - share)
            if share > 0:
                reached += torch.linalg.vecdot(p, log_q) * share
            q = log_q.exp_()
            side = torch.sub(q, p)
            l1_M[rows] = torch.linalg.vector_norm(side, ord=1, dim=1)
            cross_entropy -= weight @ reached
            l1 += weight @ l1_M[rows]
            if not gradients:
                continue
            # d L1 / d logit_k = q_k * (s_k - sum_v s_v q_v) with s = sign(q - p).
            side.sign_()
            side.sub_(torch.linalg.vecdot(side, q).unsqueeze(1)).mul_(q).mul_(weight.unsqueeze(1))
            gradients[1].add(rows, side)
            q.scatter_add_(1, label, q.new_full(label.shape, share - 1.0))
            if share > 0:
                q.sub_(p, alpha=share)
            gradients[0].add(rows, q.mul_(weight.unsqueeze(1)))
        ctx.save_for_backward(*(tensor for one in gradients for tensor in one.found))
        ctx.mark_non_differentiable(l1_M)
        return cross_entropy, l1, l1_M

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_cross_entropy: Tensor, grad_l1: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        found = [
            torch.add(first * grad_cross_entropy, second * grad_l1).to(dtype)
            for first, second, dtype in zip(saved[:3], saved[3:], ctx.dtypes, strict=True)
        ]
        return *found, None, None, None, None, None, None


class _Gradients:
    """Of one sum, for hidden rows, codes and table, collected over chunks."""

    def __init__(self, inputs: tuple[Tensor, Tensor, Tensor], head_RH: Tensor, wide: torch.dtype) -> None:
        self._hidden, self._code, self._table = inputs
        self._head = head_RH
        self.found = tuple(torch.zeros_like(x, dtype=wide) for x in inputs)

    def add(self, rows: slice, slope_mR: Tensor) -> None:
        """``slope``: gradient of the sum for the logits of ``rows``."""
        slope = slope_mR.to(self._head.dtype)
        d_hidden, d_code, d_table = self.found
        d_hidden[rows] = (slope @ self._head).to(d_hidden.dtype)
        d_code[rows] = (slope @ self._table).to(d_code.dtype)
        code = self._code[rows].to(slope.dtype)
        if d_table.dtype == slope.dtype:
            d_table.addmm_(slope.T, code)
        else:
            d_table += slope.T @ code
