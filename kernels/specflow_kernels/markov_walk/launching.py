"""The Triton kernel behind ``markov_walk``: a launch for each step, the choice among tiles in torch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow_kernels.launching import launch, power_of_two
from specflow_kernels.markov_walk.kernels import step_kernel
from specflow_kernels.markov_walk.walk import Mix, Walk

TILE = 128
ROWS = 64


def markov_walk_triton(
    base_BMV: Tensor,
    anchor_B: Tensor,
    predecessors_Vr: Tensor,
    successors_Vr: Tensor,
    *,
    greedy_B: Tensor,
    temperature_B: Tensor,
    seed_B: Tensor,
    mix: Mix | None = None,
) -> Walk:
    """Same as the reference; nothing is read back to the host."""
    base, successors = base_BMV.contiguous(), successors_Vr.contiguous()
    (batch, proposals, vocabulary), rank = base.shape, successors.shape[1]
    greedy, heat = greedy_B.to(torch.int8), temperature_B.float().contiguous()
    device = base.device
    fine = base.dtype == torch.float32  # no tensor cores, twice the bytes
    rows = min(32 if fine else ROWS, power_of_two(batch, least=16))
    splits = -(-vocabulary // TILE)
    logits = torch.empty(base.shape, dtype=torch.float32, device=device)
    embeddings = torch.empty((batch, proposals, rank), dtype=predecessors_Vr.dtype, device=device)
    tokens = torch.empty((batch, proposals), dtype=torch.int64, device=device)
    largest = torch.empty((batch, splits), dtype=torch.float32, device=device)
    choices = torch.empty((batch, splits), dtype=torch.int32, device=device)
    previous = anchor_B
    for i in range(proposals):
        embeddings[:, i] = predecessors_Vr[previous.clamp(min=0)]
        features = embeddings[:, i] if mix is None else mix(i, embeddings[:, i])
        launch(
            step_kernel, (-(-batch // rows), splits), base, features.to(base.dtype).contiguous(), successors, greedy,
            heat, seed_B.contiguous(), logits, largest, choices, batch, proposals, vocabulary, rank, i, splits,
            BLOCK_B=rows, BLOCK_V=TILE, BLOCK_R=min(64, power_of_two(rank, least=16)),
            PRECISION="ieee" if fine else "tf32", warps=8,
        )  # fmt: skip
        best = largest.amax(dim=1, keepdim=True)
        chosen = torch.where(largest == best, choices, vocabulary).amin(dim=1).long()
        refused = (choices < 0).any(dim=1) | (previous < 0)
        previous = tokens[:, i] = torch.where(refused, -1, chosen)
    return Walk(tokens, embeddings, logits)
