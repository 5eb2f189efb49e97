"""Block attention of DFlash: a row sees the context before its anchor and its own block, nothing else.

Legend: N blocks, R query rows of a block, B rows of a block, S context rows, A query heads, G key heads, d head size,
Q = R * A / G query rows of a block that share one key head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from specflow_kernels.anchored_block_attention import anchored_block_attention, explain
from torch import Tensor

from specflow.drafters.dflash.chunked_attention import EVERYTHING, Chunk, Rule, attend_in_chunks

CHUNK_SCORES = 1 << 19
"""Scores held at once: 2 MB in fp32, which a core's caches hold. A chunk has at least one block."""


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
    rule: Rule = EVERYTHING,
) -> Tensor:
    """``[N, R, A * d]``. Block n sees rows ``context[0] <= row < context[0] + visible_N[n]`` of its document, as far as
    ``rule`` lets it; its query rows are the block's last R.

    The work is the sum over blocks of what each sees, up to the rounding of chunks: a block early in a document does
    not pay for the blocks behind it, and no matrix over all blocks or all documents ever exists. Memory beside the
    inputs and the result is that of one chunk. Under autocast the products run in its dtype. On CUDA the kernel runs
    where it takes these tensors.
    """
    blocks, rows, heads, size = query_NRAd.shape
    groups = key_NBGd.shape[2]
    kind = query_NRAd.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query_NRAd.dtype
    given = [t.to(dtype) for t in (query_NRAd, key_NBGd, value_NBGd, context_key_SGd, context_value_SGd)]
    query, key, value, context_key, context_value = given
    start_N = starts(spans, device=visible_N.device)
    if explain(query, key, value, context_key, context_value, start_N=start_N, visible_N=visible_N).kernel:
        return anchored_block_attention(
            query, key, value, context_key, context_value, start_N=start_N, visible_N=visible_N, causal=rule.causal,
            window=rule.window,
        ).flatten(2)  # fmt: skip
    # [G, N, Q, d]: all query heads of one key head together, so that each product is one GEMM per key head.
    query = query.view(blocks, rows, groups, heads // groups, size).permute(2, 0, 1, 3, 4)
    mixed = attend_in_chunks(
        query.reshape(groups, blocks, rows * heads // groups, size),
        key.permute(2, 0, 1, 3),
        value.permute(2, 0, 1, 3),
        context_key.transpose(0, 1),
        context_value.transpose(0, 1),
        tuple(plan_chunks(spans, visible_N.tolist(), scores_per_row=rows * heads, rule=rule)),
        rule,
        heads // groups,
    )
    mixed = mixed.view(groups, blocks, rows, heads // groups, size).permute(1, 2, 0, 3, 4)
    return mixed.reshape(blocks, rows, heads * size)


def starts(spans: Sequence[Span], *, device: torch.device) -> Tensor:
    """``[N]`` context row where each block's document begins."""
    return torch.tensor([span.context[0] for span in spans for _ in range(*span.blocks)], device=device)


def plan_chunks(
    spans: Sequence[Span],
    visible: Sequence[int],
    *,
    scores_per_row: int,
    limit: int | None = None,
    rule: Rule = EVERYTHING,
) -> Iterator[Chunk]:
    """Neighbouring blocks of one document whose scores against the context stay below ``limit`` (``CHUNK_SCORES``).

    ``scores_per_row``: scores of one block against one context row, of all heads and query rows.
    """
    limit = CHUNK_SCORES if limit is None else limit
    for span in spans:
        first = span.blocks[0]
        while first < span.blocks[1]:
            last, longest, reach = first + 1, visible[first], rule.reach(visible[first])
            while last < span.blocks[1]:
                longer, earlier = max(longest, visible[last]), min(reach, rule.reach(visible[last]))
                if (last + 1 - first) * scores_per_row * (longer - earlier) > limit:
                    break
                last, longest, reach = last + 1, longer, earlier
            yield Chunk(blocks=(first, last), start=span.context[0], visible=tuple(visible[first:last]), first=reach)
            first = last
