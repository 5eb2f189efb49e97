"""Block attention of DFlash: a row sees the context before its anchor and its own block, nothing else.

Legend: N blocks, R query rows of a block, B rows of a block, S context rows, A query heads, G key heads, d head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One document: its rows in the concatenated context, and its blocks in the concatenated blocks."""

    context: tuple[int, int]
    blocks: tuple[int, int]


def block_attention(
    query_NRAd: Tensor,
    key_NBGd: Tensor,
    value_NBGd: Tensor,
    context_key_SGd: Tensor,
    context_value_SGd: Tensor,
    *,
    spans: Sequence[Span],
    visible_N: Tensor,
) -> Tensor:
    """``[N, R, A * d]``. Block n sees rows ``context[0] <= row < context[0] + visible_N[n]`` of its document.

    Scores against context and block are two products joined in one softmax, so the cost of a document is
    its blocks times its visible context: no matrix over all blocks or all documents ever exists.
    """
    outputs = []
    for span in spans:
        first, last = span.blocks
        rows = slice(span.context[0], span.context[1])
        outputs.append(
            _one_document(
                query_NRAd[first:last],
                key_NBGd[first:last],
                value_NBGd[first:last],
                context_key_SGd[rows],
                context_value_SGd[rows],
                visible_N[first:last],
            )
        )
    return torch.cat(outputs) if outputs else query_NRAd.flatten(2)


def _one_document(q: Tensor, k: Tensor, v: Tensor, context_k: Tensor, context_v: Tensor, visible: Tensor) -> Tensor:
    blocks, rows, heads, size = q.shape
    groups, length = k.shape[2], context_k.shape[0]
    shared = heads // groups
    # [G, N, R * shared, d]: all query heads of one key head together, so that each product is one GEMM per key head.
    grouped = (q * size**-0.5).view(blocks, rows, groups, shared, size).permute(2, 0, 1, 3, 4)
    grouped = grouped.reshape(groups, blocks, rows * shared, size)
    context_scores = grouped.reshape(groups, -1, size) @ context_k.permute(1, 2, 0)
    context_scores = context_scores.view(groups, blocks, rows * shared, length)
    hidden = torch.arange(length, device=q.device) >= visible.unsqueeze(1)
    context_scores = context_scores.masked_fill(hidden[None, :, None, :], float("-inf"))
    own_scores = grouped @ k.permute(2, 0, 3, 1)
    weights = torch.cat((context_scores, own_scores), dim=-1).float().softmax(dim=-1).to(v.dtype)
    from_context = weights[..., :length].reshape(groups, blocks * rows * shared, length) @ context_v.transpose(0, 1)
    mixed = from_context.view(groups, blocks, rows * shared, size) + weights[..., length:] @ v.permute(2, 0, 1, 3)
    mixed = mixed.view(groups, blocks, rows, shared, size).permute(1, 2, 0, 3, 4)
    return mixed.reshape(blocks, rows, heads * size)
