"""The candidate selector's lattice and walk, step by step: what the kernels must equal."""

from __future__ import annotations

import torch
from torch import Tensor


def selector_lattice_reference(
    unary_NMK: Tensor,
    candidates_NMK: Tensor,
    anchor_N: Tensor,
    hidden_NMr: Tensor,
    predecessors_Vr: Tensor,
    successors_Vr: Tensor,
) -> Tensor:
    """``[N, M, K, K]``; arguments as in ``selector_lattice``."""
    wide = torch.promote_types(unary_NMK.dtype, torch.float32)
    before = torch.cat((anchor_N[:, None, None].expand(-1, 1, candidates_NMK.shape[2]), candidates_NMK[:, :-1]), dim=1)
    left = predecessors_Vr[before].to(wide) * hidden_NMr[:, :, None].to(wide)
    return left @ successors_Vr[candidates_NMK].to(wide).transpose(2, 3) + unary_NMK[:, :, None].to(wide)


def selector_walk_reference(
    lattice_NMKK: Tensor, candidates_NMK: Tensor, *, greedy_N: Tensor, temperature_N: Tensor, coins_NM: Tensor
) -> tuple[Tensor, Tensor]:
    """``(tokens_NM, q_NMK)``; arguments as in ``selector_walk``."""
    count, proposals, kept = candidates_NMK.shape
    q = torch.zeros((count, proposals, kept), dtype=torch.float32, device=lattice_NMKK.device)
    places = torch.zeros((count, proposals), dtype=torch.int64, device=lattice_NMKK.device)
    previous = torch.zeros(count, dtype=torch.int64, device=lattice_NMKK.device)
    refused = torch.zeros(count, dtype=torch.bool, device=lattice_NMKK.device)
    index = torch.arange(kept, device=lattice_NMKK.device)
    for j in range(proposals):
        scores = lattice_NMKK[:, j].gather(1, previous[:, None, None].expand(-1, 1, kept)).squeeze(1).float()
        refused |= scores.isnan().any(dim=1)
        largest = scores.amax(dim=1, keepdim=True)
        first = torch.where(scores == largest, index, kept - 1).amin(dim=1)
        weights = ((scores - largest) / temperature_N[:, None]).exp()
        passed = (weights.cumsum(dim=1) <= coins_NM[:, j, None] * weights.sum(dim=1, keepdim=True)).sum(dim=1)
        last = torch.where(weights > 0, index, 0).amax(dim=1)
        place = torch.where(greedy_N, first, torch.minimum(passed, last))
        one_hot = (index == place[:, None]).float()
        q[:, j] = torch.where(greedy_N[:, None], one_hot, weights / weights.sum(dim=1, keepdim=True))
        places[:, j] = previous = place
    tokens = candidates_NMK.gather(2, places[:, :, None]).squeeze(2)
    tokens = torch.where(refused[:, None], -1, tokens)
    return tokens, torch.where(refused[:, None, None], 0.0, q)
