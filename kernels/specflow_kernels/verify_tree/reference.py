"""Verification of trees request by request: what the kernel must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow_kernels.drawing import draw, lowest_argmax


def verify_tree_reference(
    tokens_BD: Tensor,
    child_BD: Tensor,
    sibling_BD: Tensor,
    target_BDV: Tensor,
    *,
    greedy_B: Tensor,
    coins_BD: Tensor,
    depth: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """``(path_BL, accepted_B, next_B)``; arguments as in ``verify_tree``."""
    batch = tokens_BD.shape[0]
    path = torch.full((batch, depth + 1), -1, dtype=torch.int64)
    ends = torch.full((batch, 2), -1, dtype=torch.int64)
    for b in range(batch):
        slots, token = _walk(
            tokens_BD[b].tolist(), child_BD[b].tolist(), sibling_BD[b].tolist(), target_BDV[b],
            greedy=bool(greedy_B[b]), coins=coins_BD[b].tolist(), depth=depth,
        )  # fmt: skip
        if token >= 0:
            path[b, : len(slots)] = torch.tensor(slots)
            ends[b, 0], ends[b, 1] = len(slots) - 1, token
    path, ends = path.to(tokens_BD.device), ends.to(tokens_BD.device)
    return path, ends[:, 0], ends[:, 1]


def _walk(
    tokens: list[int], child: list[int], sibling: list[int], target_DV: Tensor, *, greedy: bool, coins: list[float],
    depth: int,
) -> tuple[list[int], int]:  # fmt: skip
    """Slots of the accepted path, the anchor's first, and the token after it; -1 for a row with NaN."""
    slots = [0]
    while True:
        here = slots[-1]
        row_V = target_DV[here].float()
        choice = lowest_argmax(row_V)
        if choice < 0:
            return slots, -1
        rejected, mass, taken = [], 0.0, -1
        slot = child[here] if len(slots) <= depth else -1
        while slot >= 0 and taken < 0:
            mass = float(torch.tensor(mass) + row_V[tokens[slot]])
            if tokens[slot] == choice if greedy else coins[here] < mass:
                taken = slot
            else:
                rejected.append(tokens[slot])
            slot = sibling[slot]
        if taken >= 0:
            slots.append(taken)
            continue
        if greedy:
            return slots, choice
        rest_V = row_V.clone()
        rest_V[rejected] = 0.0
        return slots, draw(rest_V if float(rest_V.sum()) > 0 else row_V, coins[-1])
