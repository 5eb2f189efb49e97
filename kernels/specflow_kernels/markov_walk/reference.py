"""DSpark's sequential head step by step: what the kernel must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow_kernels.markov_walk.walk import Mix, Walk
from specflow_kernels.philox import uniform


def markov_walk_reference(
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
    """Arguments as in ``markov_walk``."""
    wide = torch.promote_types(base_BMV.dtype, torch.float32)
    proposals, vocabulary = base_BMV.shape[1:]
    ids = torch.arange(vocabulary, device=base_BMV.device)
    previous, tokens, embeddings, logits = anchor_B, [], [], []
    for i in range(proposals):
        embedding = predecessors_Vr[previous.clamp(min=0)]
        features = embedding if mix is None else mix(i, embedding)
        step = base_BMV[:, i].to(wide) + features.to(wide) @ successors_Vr.to(wide).T
        noise = -torch.log(-torch.log(uniform(seed_B[:, None], i * vocabulary + ids)))
        scores = torch.where(greedy_B[:, None], step, step / temperature_B[:, None] + noise)
        largest = scores.amax(dim=1, keepdim=True)
        chosen = torch.where(scores == largest, ids, vocabulary).amin(dim=1)
        previous = torch.where(largest.squeeze(1).isnan() | (previous < 0), -1, chosen)
        tokens.append(previous)
        embeddings.append(embedding)
        logits.append(step)
    return Walk(torch.stack(tokens, dim=1), torch.stack(embeddings, dim=1), torch.stack(logits, dim=1).float())
