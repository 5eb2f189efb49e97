"""The same attention through PyTorch's FlexAttention, to be measured against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention


def flex(inputs: dict[str, Any], *, compiled: bool = True) -> Callable[..., Tensor]:
    """A function of the operator's arguments; its mask is made here, once, from ``inputs``."""
    mask = _mask(inputs)
    attend: Any = torch.compile(flex_attention) if compiled else flex_attention

    def run(
        query_NRAd: Tensor, key_NBGd: Tensor, value_NBGd: Tensor, context_key_SGd: Tensor, context_value_SGd: Tensor,
        **_: Any,
    ) -> Tensor:  # fmt: skip
        query = query_NRAd.flatten(0, 1).transpose(0, 1)[None]
        key = torch.cat((context_key_SGd, key_NBGd.flatten(0, 1))).transpose(0, 1)[None]
        value = torch.cat((context_value_SGd, value_NBGd.flatten(0, 1))).transpose(0, 1)[None]
        out: Tensor = attend(query, key, value, block_mask=mask, enable_gqa=True)
        return out[0].transpose(0, 1).reshape(query_NRAd.shape)

    return run


def _mask(inputs: dict[str, Any]) -> BlockMask:
    """Queries ``n * R + row`` against the context's rows, then all blocks' rows."""
    blocks, rows = inputs["query_NRAd"].shape[:2]
    block, context = inputs["key_NBGd"].shape[1], inputs["context_key_SGd"].shape[0]
    start, visible = inputs["start_N"], inputs["visible_N"]
    causal, window = inputs.get("causal", False), inputs.get("window")

    def seen(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        n, row = q // rows, block - rows + q % rows
        place, own = k - start[n], k - context
        before = (k < context) & (place >= 0) & (place < visible[n])
        inside = (k >= context) & (own // block == n)
        other = own % block
        if causal:
            inside = inside & (other <= row)
        if window is not None:
            before = before & (visible[n] + row - place < window)
            inside = inside & (row - other < window)
        visible_here: Tensor = before | inside
        return visible_here

    mask: BlockMask = create_block_mask(
        seen, None, None, blocks * rows, context + blocks * block, device=str(start.device)
    )  # fmt: skip
    return mask
