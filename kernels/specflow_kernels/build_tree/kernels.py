"""Triton kernels: rank the nodes, number the best ones, link them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rank_kernel(scores, chosen, nodes, keep, BLOCK: tl.constexpr):
    """``chosen``: 1 for the ``keep`` best of a request, score first, then the lower node; 2 if any score is NaN."""
    b = tl.program_id(0).to(tl.int64)
    x = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(scores + b * nodes + x, mask=x < nodes, other=0.0)
    ahead = tl.zeros((BLOCK,), tl.int32)
    refused = 0
    for low in range(0, nodes, BLOCK):
        y = low + tl.arange(0, BLOCK)
        other = tl.load(scores + b * nodes + y, mask=y < nodes, other=0.0)
        refused = tl.maximum(refused, tl.max((other != other).to(tl.int32), axis=0))
        before = (other[None, :] > own[:, None]) | ((other[None, :] == own[:, None]) & (y[None, :] < x[:, None]))
        ahead += tl.sum((before & (y < nodes)[None, :]).to(tl.int32), axis=1)
    tl.store(chosen + b * nodes + x, tl.where(refused != 0, 2, (ahead < keep).to(tl.int32)), mask=x < nodes)


@triton.jit
def number_kernel(chosen, slot_of, node_of, nodes, slots, BLOCK: tl.constexpr):
    """Chosen nodes in their order get the slots 1, 2, ..."""
    b = tl.program_id(0).to(tl.int64)
    x = tl.arange(0, BLOCK)
    taken = tl.load(chosen + b * nodes + x, mask=x < nodes, other=0)
    slot = tl.cumsum((taken == 1).to(tl.int32), axis=0)
    tl.store(slot_of + b * nodes + x, slot, mask=(x < nodes) & (taken == 1))
    tl.store(node_of + b * slots + slot, x, mask=(taken == 1) & (slot < slots))


@triton.jit
def link_kernel(
    anchor, tokens, parents, chosen, slot_of, node_of, out_tokens, out_parent, out_child, out_sibling, out_depth,
    out_visible, nodes, slots, levels, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    live = tl.where(tl.load(chosen + b * nodes) == 2, 0, slots)
    i = tl.arange(0, BLOCK)
    inside = i < slots
    proposed = (i < live) & (i > 0)
    node = tl.load(node_of + b * slots + i, mask=proposed, other=0)
    token = tl.load(tokens + b * nodes + node, mask=proposed, other=-1)
    first = tl.load(anchor + b)
    token = tl.where((i == 0) & (i < live), first, token)
    above = tl.load(parents + b * nodes + node, mask=proposed, other=-1).to(tl.int32)
    parent = tl.load(slot_of + b * nodes + above, mask=proposed & (above >= 0), other=0)
    parent = tl.where(proposed, parent, -1)

    j = i[None, :]
    linked = proposed[None, :]
    child = tl.min(tl.where(linked & (parent[None, :] == i[:, None]), j, BLOCK), axis=1)
    beside = linked & (parent[None, :] == parent[:, None]) & (j > i[:, None])
    sibling = tl.min(tl.where(beside, j, BLOCK), axis=1)
    depth = tl.zeros((BLOCK,), tl.int32)
    visible = (i[:, None] == j).to(tl.int32)
    ancestor = parent
    for _ in range(0, levels):
        depth += (ancestor >= 0).to(tl.int32)
        visible = tl.where(ancestor[:, None] == j, 1, visible)
        ancestor = tl.where(ancestor >= 0, tl.gather(parent, tl.maximum(ancestor, 0), 0), -1)

    place = b * slots + i
    tl.store(out_tokens + place, token, mask=inside)
    tl.store(out_parent + place, parent.to(tl.int64), mask=inside)
    tl.store(out_child + place, tl.where(child < BLOCK, child, -1).to(tl.int64), mask=inside)
    tl.store(out_sibling + place, tl.where(sibling < BLOCK, sibling, -1).to(tl.int64), mask=inside)
    tl.store(out_depth + place, depth.to(tl.int64), mask=inside)
    tl.store(out_visible + place[:, None] * slots + j, visible.to(tl.uint8), mask=inside[:, None] & inside[None, :])
