"""Examples and cost of anchored block attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specflow_kernels.anchored_block_attention import anchored_block_attention, explain
from specflow_kernels.anchored_block_attention.reference import anchored_block_attention_reference
from specflow_kernels.cost import Cost, bytes_of
from specflow_kernels.operator import Case, Operator
from specflow_kernels.peers import Peer


def make(
    device: torch.device, *, documents: int, tokens: int, anchors: int, block: int, heads: int, groups: int, size: int,
    dtype: torch.dtype = torch.bfloat16, window: int | None = None, causal: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """``anchors`` blocks in each of ``documents`` packed documents of ``tokens`` context rows."""
    blocks, context = documents * anchors, documents * tokens
    place = torch.arange(blocks, device=device)
    return {
        "query_NRAd": torch.randn(blocks, block - 1, heads, size, device=device, dtype=dtype),
        "key_NBGd": torch.randn(blocks, block, groups, size, device=device, dtype=dtype),
        "value_NBGd": torch.randn(blocks, block, groups, size, device=device, dtype=dtype),
        "context_key_SGd": torch.randn(context, groups, size, device=device, dtype=dtype),
        "context_value_SGd": torch.randn(context, groups, size, device=device, dtype=dtype),
        "start_N": place // anchors * tokens,
        # Spread evenly over the document, so that its cost is known without reading the tensor.
        "visible_N": (place % anchors + 1) * tokens // anchors,
        "causal": causal,
        "window": window,
    }


def pairs(query: Tensor, key: Tensor, visible_N: Tensor, window: int | None) -> int:
    """Query rows times keys that they see, without the windows' slant inside a block; all heads."""
    blocks, rows, heads, _ = query.shape
    seen = int((visible_N if window is None else visible_N.clamp(max=window)).sum())
    return rows * heads * (seen + blocks * key.shape[1])


def cost(
    query_NRAd: Tensor, key_NBGd: Tensor, value_NBGd: Tensor, context_key_SGd: Tensor, context_value_SGd: Tensor,
    *, visible_N: Tensor, window: int | None = None, **_: Any,
) -> Cost:  # fmt: skip
    """Two products over every visible pair; inputs read and output written once."""
    moved = bytes_of((query_NRAd, query_NRAd, key_NBGd, value_NBGd, context_key_SGd, context_value_SGd))
    count = pairs(query_NRAd, key_NBGd, visible_N, window)
    return Cost(bytes=moved, operations=4 * count * query_NRAd.shape[-1])


def backward_cost(**inputs: Any) -> Cost:
    """Seven products: scores and slopes are computed for the queries and again for the context."""
    forward = cost(**inputs)
    return Cost(bytes=2 * forward.bytes + bytes_of((inputs["query_NRAd"],)), operations=forward.operations * 7 // 2)


def flex_attention(inputs: dict[str, Any]) -> Callable[..., Tensor]:
    from specflow_kernels.anchored_block_attention.flex import flex

    return flex(inputs)


def kernel(**inputs: Any) -> Tensor:
    from specflow_kernels.anchored_block_attention.differentiable import anchored_block_attention_triton

    return anchored_block_attention_triton(**inputs)


OPERATOR = Operator(
    name="anchored_block_attention",
    summary="attention of DFlash blocks over the context before their anchors and themselves",
    public=anchored_block_attention,
    kernel=kernel,
    reference=anchored_block_attention_reference,
    explain=explain,
    cost=cost,
    backward_cost=backward_cost,
    peers={"FlexAttention": Peer(package="torch", computes="the same", prepare=flex_attention)},
    differentiable=("query_NRAd", "key_NBGd", "value_NBGd", "context_key_SGd", "context_value_SGd"),
    cases=(
        Case(
            name="SmolLM2-135M, quickstart",
            make=lambda device: make(
                device, documents=4, tokens=384, anchors=8, block=6, heads=9, groups=3, size=64
            ),
        ),
        Case(
            name="8B, blocks of 16",
            make=lambda device: make(
                device, documents=2, tokens=2048, anchors=256, block=16, heads=32, groups=8, size=128
            ),
        ),
        Case(
            name="8B, sliding window",
            make=lambda device: make(
                device, documents=2, tokens=2048, anchors=256, block=16, heads=32, groups=8, size=128, window=512,
                causal=True,
            ),
        ),
    ),
)  # fmt: skip
