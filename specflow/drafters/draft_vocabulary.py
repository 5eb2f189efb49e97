"""A drafter's own choice of the target's tokens. Legend: D tokens of the drafter, V the target's, P rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specflow.drafters.choice import best_tokens


def checked_ids(draft_ids: Tensor | None, *, size: int, total: int) -> Tensor:
    """``[D]`` int64 increasing ids of the target; none given: the lowest. ``ValueError`` if they are something else."""
    ids_D = torch.arange(size) if draft_ids is None else draft_ids.to(torch.int64)
    if ids_D.shape != (size,) or not bool((ids_D.diff() > 0).all()) or int(ids_D[-1]) >= total:
        raise ValueError(f"draft vocabulary: expected {size} increasing ids below {total}, found {ids_D.numel()}")
    return ids_D


def offsets_of(ids_D: Tensor) -> Tensor:
    """``d2t``: the target's id of draft token i is ``i + d2t[i]``."""
    return ids_D - torch.arange(ids_D.numel(), device=ids_D.device)


def ids_of(d2t_D: Tensor) -> Tensor:
    """Inverse of ``offsets_of``."""
    return d2t_D + torch.arange(d2t_D.numel(), device=d2t_D.device)


@torch.no_grad()
def can_follow(teacher_PH: Tensor, head: Callable[[Tensor], Tensor], ids_D: Tensor, *, total: int) -> Tensor:
    """``[P]`` bool: the target's own choice is one of ``ids_D``. ``teacher_PH``: what its head reads."""
    chosen_P = best_tokens(teacher_PH, head, width=total, ids_D=None)
    return torch.isin(chosen_P, ids_D)
