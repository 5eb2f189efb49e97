"""The tokens that a drafter chooses, in the target's ids. Legend: D draft vocabulary, H hidden size."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow.drafters.eagle3.head_loss import CHUNK_LOGITS
from specflow.drafters.eagle3.network import Eagle3Network
from specflow.drafters.training import Ends


@torch.no_grad()
def best_tokens(network: Eagle3Network, ends: Ends, hidden: Tensor) -> Tensor:
    """``[...]`` of ``[..., H]``: the most likely token of every row, of equal ones the lowest id."""
    g, ids_D = network.geometry, network.draft_ids_D
    rows = max(1, CHUNK_LOGITS // (g.draft_vocab_size or g.vocab_size))
    chosen = [
        (ends.head(part) if ids_D is None else network.lm_head(part)).argmax(dim=1)
        for part in torch.split(hidden.flatten(0, -2), rows)
    ]
    found = torch.cat(chosen)
    return (found if ids_D is None else ids_D[found]).view(hidden.shape[:-1])
