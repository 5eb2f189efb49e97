"""Attention of blocks over the context before their anchors and over themselves (METHODS 5).

Legend: N blocks, R query rows of a block, B rows of a block, S context rows, A query heads, G key heads, d head size.
"""

from __future__ import annotations

from torch import Tensor

from specflow_kernels.anchored_block_attention.reference import anchored_block_attention_reference
from specflow_kernels.choice import Choice, choose

LARGEST_HEAD = 256
LARGEST_BLOCK = 64


def anchored_block_attention(
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
    """``[N, R, A, d]``: every query row's softmax over what it sees, times the values.

    Block n sees context rows ``start_N[n] <= row < start_N[n] + visible_N[n]``: rows of its own document before its
    anchor, which is at position ``visible_N[n]``. Its queries are its last R rows; they see its B rows, with
    ``causal`` only those not behind them. ``window`` counts positions back from the row, itself included: a row at
    position p sees position k if ``p - k < window``. Query heads ``g * A / G ...`` share key head g.

    int64 or int32 ``start_N``, ``visible_N``. Differentiable once on CUDA. Raises ``ValueError`` if shapes do not fit.
    """
    _check(query_NRAd, key_NBGd, value_NBGd, context_key_SGd, context_value_SGd, start_N, visible_N, window)
    choice = explain(
        query_NRAd, key_NBGd, value_NBGd, context_key_SGd, context_value_SGd, start_N=start_N, visible_N=visible_N
    )
    run = anchored_block_attention_reference
    if choice.kernel:
        from specflow_kernels.anchored_block_attention.differentiable import anchored_block_attention_triton

        run = anchored_block_attention_triton
    return run(
        query_NRAd, key_NBGd, value_NBGd, context_key_SGd, context_value_SGd,
        start_N=start_N, visible_N=visible_N, causal=causal, window=window,
    )  # fmt: skip


def explain(
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
) -> Choice:
    """What :func:`anchored_block_attention` would run for these tensors, and why."""
    size, block = query_NRAd.shape[-1], key_NBGd.shape[1]
    tensors = (query_NRAd, key_NBGd, value_NBGd, context_key_SGd, context_value_SGd, start_N, visible_N)
    return choose(
        tensors,
        refusals=(
            (size > LARGEST_HEAD, f"head size {size}; the kernel's tiles hold up to {LARGEST_HEAD}"),
            (block < query_NRAd.shape[1], f"{query_NRAd.shape[1]} query rows of blocks of {block}"),
            (block > LARGEST_BLOCK, f"blocks of {block} rows; the kernel's tiles hold up to {LARGEST_BLOCK}"),
        ),
    )


def _check(
    query: Tensor, key: Tensor, value: Tensor, context_key: Tensor, context_value: Tensor, start: Tensor,
    visible: Tensor, window: int | None,
) -> None:  # fmt: skip
    blocks, rows, heads, size = query.shape
    block, groups = key.shape[1:3]
    problems = [
        f"{name} {tuple(tensor.shape)}, expected {wanted}"
        for name, tensor, wanted in (
            ("key", key, (blocks, block, groups, size)),
            ("value", value, (blocks, block, groups, size)),
            ("context_key", context_key, (context_key.shape[0], groups, size)),
            ("context_value", context_value, (context_key.shape[0], groups, size)),
            ("start", start, (blocks,)),
            ("visible", visible, (blocks,)),
        )
        if tuple(tensor.shape) != wanted
    ]
    if rows > block:
        problems.append(f"{rows} query rows of blocks of {block}, expected at most as many")
    if heads % groups:
        problems.append(f"{heads} query heads for {groups} key heads, expected a multiple")
    if window is not None and window < 1:
        problems.append(f"window {window}, expected at least 1 or none")
    if problems:
        raise ValueError(f"query {tuple(query.shape)} does not fit: {'; '.join(problems)}")
