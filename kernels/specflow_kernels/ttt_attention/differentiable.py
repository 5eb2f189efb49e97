"""The Triton kernels as one differentiable function."""

from __future__ import annotations

from math import e, log2
from typing import Any

import torch
from torch import Tensor

from specflow_kernels.launching import capability_of, launch, power_of_two
from specflow_kernels.ttt_attention.kernels import chain_kernel, forward_kernel, key_kernel, query_kernel


def ttt_attention_triton(
    query_TAd: Tensor,
    key_TGd: Tensor,
    value_TGd: Tensor,
    chain_key_CTGd: Tensor,
    chain_value_CTGd: Tensor,
    *,
    first_T: Tensor,
) -> Tensor:
    """Same as the reference; shapes are checked by ``ttt_attention``. Differentiable once."""
    apply: Any = _Attention.apply
    out: Tensor = apply(query_TAd, key_TGd, value_TGd, chain_key_CTGd, chain_value_CTGd, first_T)
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        *inputs, first = (t.contiguous() for t in given)
        first = first.to(torch.int32)
        query, key, _, chain, _ = inputs
        (tokens, heads, size), groups = query.shape, key.shape[1]
        out = torch.empty_like(query)
        log_sums = torch.empty((tokens, heads), dtype=torch.float32, device=query.device)
        tiles = _tiles(query, groups)
        launch(
            forward_kernel, (-(-tokens // tiles["BLOCK_T"]), heads), *inputs, first, out, log_sums, tokens,
            chain.shape[0], heads, groups, log2(e) * size**-0.5, warps=_warps(query), stages=2, **tiles,
        )  # fmt: skip
        ctx.save_for_backward(*inputs, first, out, log_sums)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, first, out, log_sums = ctx.saved_tensors
        query, key, value, chain_key, chain_value = inputs
        (tokens, heads, size), groups, depths = query.shape, key.shape[1], chain_key.shape[0]
        grad = grad.contiguous()
        d_query, d_key, d_value, d_chain_key, d_chain_value = (torch.empty_like(t) for t in inputs)
        deltas = torch.empty_like(log_sums)
        tiles = _tiles(query, groups)
        scales = (log2(e) * size**-0.5, size**-0.5)
        of_rows = -(-tokens // tiles["BLOCK_T"])
        launch(
            query_kernel, (of_rows, heads), *inputs, first, out, log_sums, grad, d_query, deltas, tokens, depths,
            heads, groups, *scales, warps=8, stages=1, **tiles,
        )  # fmt: skip
        tiles = _tiles(query, groups, keys=True)
        of_rows = -(-tokens // tiles["BLOCK_T"])
        last = torch.searchsorted(first, first, right=True).to(torch.int32)  # documents lie one behind the other
        launch(
            key_kernel, (of_rows, groups), query, key, value, first, last, log_sums, deltas, grad, d_key, d_value,
            tokens, heads, groups, *scales, warps=8 if size > 64 else 4, stages=1,
            registers=128 if query.dtype == torch.float32 else None, **tiles,
        )  # fmt: skip
        tiles.pop("PRECISION")
        launch(
            chain_kernel, (of_rows, groups, depths), query, chain_key, chain_value, log_sums, deltas, grad,
            d_chain_key, d_chain_value, tokens, heads, groups, *scales, warps=8, stages=1, **tiles,
        )  # fmt: skip
        return d_query, d_key, d_value, d_chain_key, d_chain_value, None


def _tiles(query: Tensor, groups: int, *, keys: bool = False) -> dict[str, Any]:
    """``keys``: of the kernel that holds two accumulators, which leave less room."""
    tokens, heads, size = query.shape
    width = power_of_two(size, least=16)
    old = capability_of(query) < 90
    fine = query.dtype == torch.float32  # without tensor cores, on operands that live in registers
    most = 32 if width > 128 or (keys and (old or width > 64)) else 64
    return {
        "RATIO": heads // groups,
        "D": size,
        "BLOCK_T": min(16 if fine else most, power_of_two(tokens, least=16)),
        "BLOCK_D": width,
        "PRECISION": "ieee" if fine else "tf32",
    }


def _warps(query: Tensor) -> int:
    """Of the forward pass: operands of products live in registers before sm_90, and in fp32."""
    in_registers = capability_of(query) < 90 or query.dtype == torch.float32
    return 8 if in_registers and query.shape[2] > 64 else 4
