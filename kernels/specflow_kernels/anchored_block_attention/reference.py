"""Block attention as one dense softmax: what the kernel must equal, for any device and floating-point dtype."""

from __future__ import annotations

import torch
from torch import Tensor


def anchored_block_attention_reference(
    query_NRAd: Tensor,
    key_NBGd: Tensor,
    value_NBGd: Tensor,
    context_key_SGd: Tensor,
    context_value_SGd: Tensor,
    *,
    start_N: Tensor,
    visible_N: Tensor,
    causal: bool = False,
    window: int | None = None,
) -> Tensor:
    """``[N, R, A, d]``; arguments as in ``anchored_block_attention``. Holds ``N * A * R * (S + B)`` scores."""
    blocks, rows, heads, size = query_NRAd.shape
    groups = key_NBGd.shape[2]
    wide = torch.promote_types(query_NRAd.dtype, torch.float32)
    query = query_NRAd.to(wide).reshape(blocks, rows, groups, heads // groups, size)
    against_context = torch.einsum("nrgad,sgd->ngars", query, context_key_SGd.to(wide))
    against_block = torch.einsum("nrgad,nbgd->ngarb", query, key_NBGd.to(wide))
    scores = torch.cat((against_context, against_block), dim=-1) * size**-0.5
    seen_NRK = visible_keys(
        start_N, visible_N, rows=rows, block=key_NBGd.shape[1], context=context_key_SGd.shape[0],
        causal=causal, window=window,
    )  # fmt: skip
    weights = scores.masked_fill(~seen_NRK[:, None, None], float("-inf")).softmax(dim=-1)
    context, block = weights.split((context_key_SGd.shape[0], key_NBGd.shape[1]), dim=-1)
    mixed = torch.einsum("ngars,sgd->nrgad", context, context_value_SGd.to(wide))
    mixed = mixed + torch.einsum("ngarb,nbgd->nrgad", block, value_NBGd.to(wide))
    return mixed.flatten(2, 3).to(query_NRAd.dtype)


def visible_keys(
    start_N: Tensor, visible_N: Tensor, *, rows: int, block: int, context: int, causal: bool, window: int | None
) -> Tensor:
    """``[N, R, S + B]``: whether a row of a block sees a context row, then whether it sees a row of its block."""
    device = start_N.device
    row = torch.arange(block - rows, block, device=device)[:, None]
    own = torch.arange(block, device=device)[None, :]
    in_context = torch.arange(context, device=device) - start_N[:, None]  # position in the document
    on_context = ((in_context >= 0) & (in_context < visible_N[:, None]))[:, None, :].expand(-1, rows, -1)
    on_block = (own <= row) if causal else torch.ones_like(own <= row)
    if window is not None:
        position = visible_N[:, None] + row.T  # [N, R]
        on_context = on_context & (position[:, :, None] - in_context[:, None, :] < window)
        on_block = on_block & (row - own < window)
    return torch.cat((on_context, on_block.expand(start_N.shape[0], -1, -1)), dim=-1)
