"""The Triton kernels as one differentiable function."""

from __future__ import annotations

from math import log2
from typing import Any

import torch
from torch import Tensor

from specflow_kernels.anchored_block_attention.backward_kernels import block_kernel, context_kernel
from specflow_kernels.anchored_block_attention.forward_kernels import forward_kernel
from specflow_kernels.launching import capability_of, launch, power_of_two

LOG2_E = log2(2.718281828459045)


def anchored_block_attention_triton(
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
    """Same as the reference; shapes are checked by ``anchored_block_attention``. Differentiable once."""
    apply: Any = _Attention.apply
    out: Tensor = apply(
        query_NRAd, key_NBGd, value_NBGd, context_key_SGd, context_value_SGd, start_N, visible_N, causal, window or 0
    )
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, context_key: Tensor, context_value: Tensor,
        start: Tensor, visible: Tensor, causal: bool, window: int,
    ) -> Tensor:  # fmt: skip
        inputs = tuple(t.contiguous() for t in (query, key, value, context_key, context_value, start, visible))
        query = inputs[0]
        out = torch.empty_like(query)
        log_sums = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
        tiles = _tiles(query, key, window=window)
        warps = tiles.pop("warps")
        groups = key.shape[2]
        blocks_of_rows = -(-(tiles["R"] * tiles["RATIO"]) // tiles["BLOCK_Q"])
        launch(
            forward_kernel, (query.shape[0], groups, blocks_of_rows), *inputs, out, log_sums, groups, window,
            LOG2_E * query.shape[-1] ** -0.5, CAUSAL=causal, warps=warps, stages=2, **tiles,
        )  # fmt: skip
        ctx.save_for_backward(*inputs, out, log_sums)
        ctx.causal, ctx.window = causal, window
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, out, log_sums = ctx.saved_tensors
        query, key, _, context_key, context_value, start, visible = inputs
        grad = grad.contiguous()
        d_query, d_key, d_value, d_context_key, d_context_value = (torch.empty_like(t) for t in inputs[:5])
        deltas = torch.empty_like(log_sums)
        tiles = _tiles(query, key, window=ctx.window, backward=True)
        warps = tiles.pop("warps")
        groups, scale = key.shape[2], query.shape[-1] ** -0.5
        # Shallower pipelines than forward: two accumulators and twice the operands are live.
        launch(
            block_kernel, (query.shape[0], groups), *inputs, out, log_sums, grad, d_query, d_key, d_value, deltas,
            groups, ctx.window, LOG2_E * scale, scale, CAUSAL=ctx.causal, warps=warps, stages=1, **tiles,
        )  # fmt: skip
        rows, size = context_key.shape[0], tiles["BLOCK_K"]
        first, last = seen_by(start, visible, rows=rows, size=size)
        tiles = {name: tile for name, tile in tiles.items() if name != "BLOCK_B"}
        launch(
            context_kernel, (-(-rows // size), groups), query, context_key, context_value, start, visible, first,
            last, log_sums, deltas, grad, d_context_key, d_context_value, rows, groups, ctx.window, LOG2_E * scale,
            scale, warps=warps, stages=1, registers=128 if query.dtype == torch.float32 else None, **tiles,
        )  # fmt: skip
        return d_query, d_key, d_value, d_context_key, d_context_value, None, None, None, None


def seen_by(start_N: Tensor, visible_N: Tensor, *, rows: int, size: int) -> tuple[Tensor, Tensor]:
    """``[tiles]`` int32 each: the first block that sees a row of the tile, and one past the last; equal if none does.

    Blocks between may see nothing of it: the kernel skips them.
    """
    blocks = start_N.shape[0]
    low = torch.arange(0, rows, size, device=start_N.device)[:, None]
    seen = (start_N < low + size) & (start_N + visible_N > low) & (visible_N > 0)
    index = torch.arange(blocks, device=start_N.device)
    if not blocks:
        nothing = torch.zeros(low.shape[0], dtype=torch.int32, device=start_N.device)
        return nothing, nothing
    first = torch.where(seen, index, blocks).amin(dim=1)
    last = torch.where(seen, index + 1, 0).amax(dim=1)
    return torch.minimum(first, last).to(torch.int32), last.to(torch.int32)


def _tiles(query: Tensor, key: Tensor, *, window: int, backward: bool = False) -> dict[str, Any]:
    """Sizes that the kernels are compiled for. Small inputs get small tiles, at least the 16 of tensor cores."""
    _, rows, heads, size = query.shape
    block, groups = key.shape[1:3]
    width = power_of_two(size, least=16)
    # fp32 products run without tensor cores, on operands that live in registers.
    fine = query.dtype == torch.float32
    old = capability_of(query) < 90  # operands of its products live in registers, not in shared memory
    most = 16 if fine else 32 if width > 128 else 64
    of_queries = min(most, 16 if width > 64 else 32) if old and backward else most
    return {
        "R": rows,
        "B": block,
        "RATIO": heads // groups,
        "D": size,
        "BLOCK_Q": min(of_queries, power_of_two(rows * heads // groups, least=16)),
        "BLOCK_B": power_of_two(block, least=16),
        "BLOCK_K": min(most, 32) if old else most,
        "BLOCK_D": width,
        "WINDOWED": window > 0,
        "PRECISION": "ieee" if fine else "tf32",
        "warps": 8 if backward or ((old or fine) and width > 64) else 4,
    }
