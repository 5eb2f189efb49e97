"""The Triton kernels behind ``verify_tree``."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow_kernels.draw_kernels import choice_kernel
from specflow_kernels.launching import launch, power_of_two
from specflow_kernels.verify_tree.kernels import tree_kernel

TILE = 4096


def verify_tree_triton(
    tokens_BD: Tensor,
    child_BD: Tensor,
    sibling_BD: Tensor,
    target_BDV: Tensor,
    *,
    greedy_B: Tensor,
    coins_BD: Tensor,
    depth: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Same as the reference, in two launches; shapes are checked by ``verify_tree``."""
    batch, slots, vocabulary = target_BDV.shape
    device = target_BDV.device
    tokens, child, sibling, target, coins = (
        t.contiguous() for t in (tokens_BD, child_BD, sibling_BD, target_BDV, coins_BD)
    )
    greedy = greedy_B.to(torch.int8)
    choices = torch.empty((batch, slots), dtype=torch.int64, device=device)
    path = torch.empty((batch, depth + 1), dtype=torch.int64, device=device)
    accepted, following = (torch.empty(batch, dtype=torch.int64, device=device) for _ in range(2))
    block = min(TILE, power_of_two(vocabulary, least=16))
    # Of all requests: it also tells rows with NaN, which no probability alone does.
    launch(
        choice_kernel, (batch, slots), target, torch.ones_like(greedy), choices, slots, vocabulary, BLOCK=block,
        warps=8,
    )  # fmt: skip
    launch(
        tree_kernel, (batch,), tokens, child, sibling, target, choices, greedy, coins, path, accepted, following,
        slots, depth, vocabulary, BLOCK=block, warps=8,
    )  # fmt: skip
    return path, accepted, following
