"""Examples and cost of training-time test's attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specflow_kernels.cost import Cost, bytes_of
from specflow_kernels.operator import Case, Operator
from specflow_kernels.ttt_attention import explain, ttt_attention
from specflow_kernels.ttt_attention.reference import ttt_attention_reference


def make(
    device: torch.device, *, documents: int, tokens: int, depths: int, heads: int, groups: int, size: int,
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:  # fmt: skip
    rows = documents * tokens
    return {
        "query_TAd": torch.randn(rows, heads, size, device=device, dtype=dtype),
        "key_TGd": torch.randn(rows, groups, size, device=device, dtype=dtype),
        "value_TGd": torch.randn(rows, groups, size, device=device, dtype=dtype),
        "chain_key_CTGd": torch.randn(depths, rows, groups, size, device=device, dtype=dtype),
        "chain_value_CTGd": torch.randn(depths, rows, groups, size, device=device, dtype=dtype),
        "first_T": torch.arange(rows, device=device) // tokens * tokens,
    }


def cost(
    query_TAd: Tensor, key_TGd: Tensor, value_TGd: Tensor, chain_key_CTGd: Tensor, chain_value_CTGd: Tensor, *,
    first_T: Tensor,
) -> Cost:  # fmt: skip
    """Two products over every visible pair; inputs read and output written once."""
    tokens, heads, size = query_TAd.shape
    seen = int((torch.arange(tokens, device=first_T.device) - first_T + 1).sum())
    pairs = heads * (seen + tokens * chain_key_CTGd.shape[0])
    moved = bytes_of((query_TAd, query_TAd, key_TGd, value_TGd, chain_key_CTGd, chain_value_CTGd))
    return Cost(bytes=moved, operations=4 * pairs * size)


def backward_cost(**inputs: Any) -> Cost:
    """Seven products: scores and slopes are computed for the queries and again for the keys."""
    forward = cost(**inputs)
    return Cost(bytes=2 * forward.bytes + bytes_of((inputs["query_TAd"],)), operations=forward.operations * 7 // 2)


def kernel(**inputs: Any) -> Tensor:
    from specflow_kernels.ttt_attention.differentiable import ttt_attention_triton

    return ttt_attention_triton(**inputs)


OPERATOR = Operator(
    name="ttt_attention",
    summary="attention of EAGLE-3 over depth 0 and the row's own chain",
    public=ttt_attention,
    kernel=kernel,
    reference=ttt_attention_reference,
    explain=explain,
    cost=cost,
    backward_cost=backward_cost,
    differentiable=("query_TAd", "key_TGd", "value_TGd", "chain_key_CTGd", "chain_value_CTGd"),
    cases=(
        Case(
            name="SmolLM2-135M, depth 2",
            make=lambda device: make(device, documents=4, tokens=384, depths=2, heads=9, groups=3, size=64),
        ),
        Case(
            name="8B, depth 6",
            make=lambda device: make(device, documents=2, tokens=2048, depths=6, heads=32, groups=8, size=128),
        ),
    ),
)
