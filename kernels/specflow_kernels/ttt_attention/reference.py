"""Attention of training-time test as one dense softmax: what the kernel must equal."""

from __future__ import annotations

import torch
from torch import Tensor


def ttt_attention_reference(
    query_TAd: Tensor,
    key_TGd: Tensor,
    value_TGd: Tensor,
    chain_key_CTGd: Tensor,
    chain_value_CTGd: Tensor,
    *,
    first_T: Tensor,
) -> Tensor:
    """``[T, A, d]``; arguments as in ``ttt_attention``. Holds ``A * T * (T + C)`` scores."""
    tokens, heads, size = query_TAd.shape
    groups = key_TGd.shape[1]
    wide = torch.promote_types(query_TAd.dtype, torch.float32)
    query = query_TAd.to(wide).reshape(tokens, groups, heads // groups, size)
    place = torch.arange(tokens, device=query.device)
    seen = (place[None, :] <= place[:, None]) & (place[None, :] >= first_T[:, None])
    before = torch.einsum("tgad,sgd->gats", query, key_TGd.to(wide)).masked_fill(~seen, float("-inf"))
    chain = torch.einsum("tgad,ctgd->gatc", query, chain_key_CTGd.to(wide))
    weights = (torch.cat((before, chain), dim=-1) * size**-0.5).softmax(dim=-1)
    before, chain = weights.split((tokens, chain_key_CTGd.shape[0]), dim=-1)
    mixed = torch.einsum("gats,sgd->tgad", before, value_TGd.to(wide))
    mixed = mixed + torch.einsum("gatc,ctgd->tgad", chain, chain_value_CTGd.to(wide))
    return mixed.flatten(1, 2).to(query_TAd.dtype)
