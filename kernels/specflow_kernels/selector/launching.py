"""The Triton kernels behind ``selector_lattice`` and ``selector_walk``."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow_kernels.launching import launch, power_of_two
from specflow_kernels.selector.kernels import lattice_kernel, walk_kernel


def selector_lattice_triton(
    unary_NMK: Tensor,
    candidates_NMK: Tensor,
    anchor_N: Tensor,
    hidden_NMr: Tensor,
    predecessors_Vr: Tensor,
    successors_Vr: Tensor,
) -> Tensor:
    """Same as the reference, in one launch; products of three numbers are not rounded before their sum."""
    given = (unary_NMK, candidates_NMK, anchor_N, hidden_NMr, predecessors_Vr, successors_Vr)
    inputs = tuple(t.contiguous() for t in given)
    count, proposals, kept = candidates_NMK.shape
    rank = hidden_NMr.shape[2]
    out = torch.empty((count, proposals, kept, kept), dtype=torch.float32, device=unary_NMK.device)
    launch(
        lattice_kernel, (count, proposals), *inputs, out, proposals, kept, rank,
        BLOCK_K=power_of_two(kept, least=16), BLOCK_R=min(64, power_of_two(rank, least=16)), PRECISION="ieee",
    )  # fmt: skip
    return out


def selector_walk_triton(
    lattice_NMKK: Tensor, candidates_NMK: Tensor, *, greedy_N: Tensor, temperature_N: Tensor, coins_NM: Tensor
) -> tuple[Tensor, Tensor]:
    """Same as the reference, in one launch."""
    count, proposals, kept = candidates_NMK.shape
    device = lattice_NMKK.device
    tokens = torch.empty((count, proposals), dtype=torch.int64, device=device)
    q = torch.empty((count, proposals, kept), dtype=torch.float32, device=device)
    launch(
        walk_kernel, (count,), lattice_NMKK.contiguous(), candidates_NMK.contiguous(), greedy_N.to(torch.int8),
        temperature_N.float().contiguous(), coins_NM.contiguous(), tokens, q, proposals, kept,
        BLOCK_K=power_of_two(kept, least=2), warps=1,
    )  # fmt: skip
    return tokens, q
