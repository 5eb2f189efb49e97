"""The tokens that a drafter chooses, in the target's ids. Legend: D draft vocabulary, H hidden size."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specflow.drafters.row_losses import CHUNK_LOGITS


@torch.no_grad()
def best_tokens(hidden: Tensor, head: Callable[[Tensor], Tensor], *, width: int, ids_D: Tensor | None) -> Tensor:
    """``[...]`` of ``[..., H]``: the most likely token of every row, of equal ones the lowest id.

    ``head``: logits of rows ``[n, H]`` over a vocabulary of ``width`` tokens, whose ids are ``ids_D``; none: all.
    """
    rows = max(1, CHUNK_LOGITS // width)
    found = torch.cat([head(part).argmax(dim=1) for part in torch.split(hidden.flatten(0, -2), rows)])
    return (found if ids_D is None else ids_D[found]).view(hidden.shape[:-1])
