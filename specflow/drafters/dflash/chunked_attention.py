"""Attention of blocks over a context prefix and themselves, a chunk of blocks at a time, forward and backward.

Nothing of the size of the scores outlives its chunk: the backward pass computes the weights again. On a CPU in fp32
the order of all sums is fixed by the shapes, so results repeat bit for bit.

Legend: G key heads, N blocks, n blocks of a chunk, Q query rows of a block that share a key head, B rows of a block,
S context rows, L context rows that a chunk sees, d head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a row sees beside the context before its anchor and its own block being all there is."""

    window: int | None = None
    """Positions counted back from the row's own, which is one of them; at least a block, so only context is cut."""
    causal: bool = False
    """Later rows of the block are hidden."""

    def reach(self, visible: int) -> int:
        """First of ``visible`` context rows that any row of the block sees, its anchor row before all others."""
        return 0 if self.window is None else max(0, visible - self.window + 1)

    def hide(self, scores_GBAK: Tensor) -> None:
        """Set scores of one block to minus infinity where a row does not see: keys from ``reach`` on, then the block.

        B rows of the block, A query heads of each key head.
        """
        rows, device = scores_GBAK.shape[1], scores_GBAK.device
        context, row_B1 = scores_GBAK.shape[3] - rows, torch.arange(rows, device=device).unsqueeze(1)
        if self.window is not None:
            # Keys are counted from the last context row back, whose distance to the anchor's row is 1.
            back_L = torch.arange(context, 0, -1, device=device)
            outside_BL = back_L + row_B1 >= self.window
            scores_GBAK[..., :context].masked_fill_(outside_BL.unsqueeze(1), float("-inf"))
        if self.causal:
            later_BB = torch.arange(rows, device=device) > row_B1
            scores_GBAK[..., context:].masked_fill_(later_BB.unsqueeze(1), float("-inf"))


EVERYTHING = Rule()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Blocks that are computed together: neighbours in one document."""

    blocks: tuple[int, int]
    start: int
    """Context row where their document begins."""
    visible: tuple[int, ...]
    """Context rows before each block's anchor."""
    first: int = 0
    """First of them that any block of the chunk sees."""

    @property
    def rows(self) -> slice:
        """Context rows that any block of the chunk sees."""
        return slice(self.start + self.first, self.start + max(self.visible))


def attend_in_chunks(
    query_GNQd: Tensor,
    key_GNBd: Tensor,
    value_GNBd: Tensor,
    context_key_GSd: Tensor,
    context_value_GSd: Tensor,
    chunks: tuple[Chunk, ...],
    rule: Rule = EVERYTHING,
    heads: int = 1,
) -> Tensor:
    """``[G, N, Q, d]``: softmax of the scaled scores over both kinds of keys, times their values; one dtype for all.

    Scores are rounded to the inputs' dtype; the softmax is fp32 or, for float64 inputs, float64. ``chunks`` cover
    every block once. ``heads``: query heads that share a key head, the fastest part of Q; a block's query rows are its
    last ones. Differentiable once.
    """
    apply: Any = _ChunkedAttention.apply
    kind = query_GNQd.device.type
    with torch.autocast(kind, enabled=False):  # the inputs' dtype rules, in backward too
        out: Tensor = apply(query_GNQd, key_GNBd, value_GNBd, context_key_GSd, context_value_GSd, (chunks, rule, heads))
    return out


class _ChunkedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        c_key: Tensor,
        c_value: Tensor,
        plan: tuple[tuple[Chunk, ...], Rule, int],
    ) -> Tensor:
        query, key, value, c_key, c_value = (t.contiguous() for t in (query, key, value, c_key, c_value))
        ctx.plan = plan
        chunks, rule, heads = plan
        ctx.save_for_backward(query, key, value, c_key, c_value)
        mixed = torch.empty_like(query)
        for chunk in chunks:
            here, rows = slice(*chunk.blocks), chunk.rows
            weights = _weights(query[:, here], key[:, here], c_key[:, rows], chunk, rule, heads)
            mixed[:, here] = _mix(weights, value[:, here], c_value[:, rows])
        return mixed

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_mixed: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, c_key, c_value = ctx.saved_tensors
        grad_mixed = grad_mixed.contiguous()
        d_query, d_key, d_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        # Sums over all chunks: not in a narrow dtype.
        wide = torch.promote_types(query.dtype, torch.float32)
        d_c_key, d_c_value = (torch.zeros_like(t, dtype=wide) for t in (c_key, c_value))
        scale = query.shape[-1] ** -0.5
        chunks, rule, heads = ctx.plan
        for chunk in chunks:
            here, rows = slice(*chunk.blocks), chunk.rows
            seen, grad = rows.stop - rows.start, grad_mixed[:, here]
            weights = _weights(query[:, here], key[:, here], c_key[:, rows], chunk, rule, heads)
            d_weights = _products(grad, value[:, here], c_value[:, rows], scale=1.0)
            d_scores = torch._softmax_backward_data(d_weights.to(weights.dtype), weights, -1, weights.dtype)
            d_scores, weights = d_scores.mul_(scale).to(query.dtype), weights.to(query.dtype)
            d_query[:, here] = _mix(d_scores, key[:, here], c_key[:, rows])
            d_key[:, here] = d_scores[..., seen:].transpose(2, 3) @ query[:, here]
            d_value[:, here] = weights[..., seen:].transpose(2, 3) @ grad
            _add_product(d_c_key[:, rows], d_scores[..., :seen], query[:, here])
            _add_product(d_c_value[:, rows], weights[..., :seen], grad)
        return d_query, d_key, d_value, d_c_key.to(c_key.dtype), d_c_value.to(c_value.dtype), None


def _weights(
    query_GnQd: Tensor, key_GnBd: Tensor, context_key_GLd: Tensor, chunk: Chunk, rule: Rule, heads: int
) -> Tensor:
    """``[G, n, Q, L + B]``, at least fp32."""
    scores = _products(query_GnQd, key_GnBd, context_key_GLd, scale=query_GnQd.shape[-1] ** -0.5)
    _hide(scores, chunk, rule, heads=heads, rows=key_GnBd.shape[2])
    return scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))


def _hide(scores_GnQK: Tensor, chunk: Chunk, rule: Rule, *, heads: int, rows: int) -> None:
    """Set scores of what a row does not see to minus infinity."""
    device, first = scores_GnQK.device, chunk.first
    least, most = min(chunk.visible), max(chunk.visible)
    if least < most:  # rows that all of them see need no mask
        visible = torch.tensor(chunk.visible, device=device)
        hidden = torch.arange(least, most, device=device) >= visible.unsqueeze(1)
        scores_GnQK[..., least - first : most - first].masked_fill_(hidden[None, :, None, :], float("-inf"))
    if rule.window is None and not rule.causal:
        return
    # Query rows are the last of the block's, each as often as there are heads.
    row_Q = torch.arange(rows * heads, device=device)[-scores_GnQK.shape[2] :] // heads
    if rule.window is not None:
        anchor_n = torch.tensor(chunk.visible, device=device)
        oldest_nQ = anchor_n.unsqueeze(1) + row_Q - (rule.window - 1)
        outside = torch.arange(first, most, device=device) < oldest_nQ.unsqueeze(2)
        scores_GnQK[..., : most - first].masked_fill_(outside.unsqueeze(0), float("-inf"))
    if rule.causal:
        later = torch.arange(rows, device=device) > row_Q.unsqueeze(1)
        scores_GnQK[..., most - first :].masked_fill_(later, float("-inf"))


def _products(rows_GnQd: Tensor, own_GnBd: Tensor, context_GLd: Tensor, *, scale: float) -> Tensor:
    """``[G, n, Q, L + B]``: every row against its document's context rows, then against its own block's."""
    groups, blocks, count, _ = rows_GnQd.shape
    seen = context_GLd.shape[1]
    out = rows_GnQd.new_empty(groups, blocks, count, seen + own_GnBd.shape[2])
    flat = out.view(groups, blocks * count, -1)[..., :seen]
    flat.baddbmm_(_flat(rows_GnQd), context_GLd.transpose(1, 2), beta=0, alpha=scale)
    # Not into the slice: that would be one call per block and head.
    own = rows_GnQd.flatten(0, 1) @ own_GnBd.flatten(0, 1).transpose(1, 2)
    torch.mul(own.view(groups, blocks, count, -1), scale, out=out[..., seen:])
    return out


def _mix(weights_GnQK: Tensor, own_GnBd: Tensor, context_GLd: Tensor) -> Tensor:
    """``[G, n, Q, d]``: rows of the context and of the block, weighted and summed."""
    weights = weights_GnQK.to(own_GnBd.dtype)
    seen = context_GLd.shape[1]
    mixed = (_flat(weights[..., :seen]) @ context_GLd).view(*weights.shape[:3], -1)
    return mixed.add_(weights[..., seen:] @ own_GnBd)


def _add_product(sum_GLd: Tensor, weights_GnQL: Tensor, rows_GnQd: Tensor) -> None:
    """Add ``weights.T @ rows`` over all rows of all blocks."""
    left, right = _flat(weights_GnQL).transpose(1, 2), _flat(rows_GnQd)
    if sum_GLd.dtype == right.dtype:
        sum_GLd.baddbmm_(left, right)
    else:
        sum_GLd.add_(left @ right)


def _flat(rows_GnQK: Tensor) -> Tensor:
    """``[G, n * Q, K]``; a view where rows of all blocks lie one behind the other."""
    return rows_GnQK.flatten(1, 2)
