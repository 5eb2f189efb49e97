"""The K most likely tokens of a row, exactly, with one pass over the vocabulary; and their logits with a gradient.

Legend: M rows, V vocabulary, H hidden size, K candidates of a row, C groups of the vocabulary, G tokens of a group.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

GROUP = 128
"""Neighbouring tokens whose largest logit is found first."""


def largest(logits_MV: Tensor, count: int) -> Tensor:
    """``[M, K]`` ids, increasing, of the K largest logits; of equal ones the lowest ids.

    Any of the K largest, ordered by value and then by id, lies in one of the K groups that come first when ordered by
    their largest logit and then by place: the groups before its own hold at least one larger element each. So only
    K groups are searched. Raises ``ValueError`` if K is larger than V.
    """
    rows, vocab = logits_MV.shape
    if count > vocab:
        raise ValueError(f"expected at most {vocab} candidates, as many as there are tokens, found {count}")
    padded = -vocab % GROUP
    if padded:
        logits_MV = F.pad(logits_MV, (0, padded), value=float("-inf"))
    groups_MCG = logits_MV.view(rows, -1, GROUP)
    if groups_MCG.shape[1] > count:
        chosen_MK = _first(groups_MCG.amax(dim=2), count)
        groups_MCG = groups_MCG.gather(1, chosen_MK.unsqueeze(2).expand(-1, -1, GROUP))
    else:
        chosen_MK = torch.arange(groups_MCG.shape[1], device=logits_MV.device).expand(rows, -1)
    flat_MS = groups_MCG.flatten(1)
    place_MK = _first(flat_MS, count)
    return chosen_MK.gather(1, place_MK // GROUP) * GROUP + place_MK % GROUP


def _first(values_MS: Tensor, count: int) -> Tensor:
    """``[M, K]`` places of the K largest, increasing; of equal ones the first places."""
    top = values_MS.topk(min(count + 1, values_MS.shape[1]), dim=1)
    if top.values.shape[1] == count or bool((top.values[:, count - 1] > top.values[:, count]).all()):
        chosen_MK = top.indices[:, :count]
    else:  # equal ones at the border, of which topk takes any: a full sort keeps their order
        chosen_MK = values_MS.sort(dim=1, descending=True, stable=True).indices[:, :count]
    return chosen_MK.sort(dim=1).values


def candidate_logits(hidden_MH: Tensor, head_VH: Tensor, candidates_MK: Tensor) -> Tensor:
    """``[M, K]`` logits of each row's candidates, in the head's dtype; differentiable once, for ``hidden_MH`` only.

    The rows of the head are gathered a chunk of rows at a time, again in the backward pass, and never kept.
    """
    apply: Any = _CandidateLogits.apply
    out: Tensor = apply(hidden_MH, head_VH, candidates_MK)
    return out


CHUNK_ROWS = 256


class _CandidateLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_MH: Tensor, head_VH: Tensor, candidates_MK: Tensor) -> Tensor:
        ctx.save_for_backward(head_VH, candidates_MK)
        ctx.dtype = hidden_MH.dtype
        out = head_VH.new_empty(candidates_MK.shape)
        for rows in _chunks(len(out)):
            part = hidden_MH[rows].to(head_VH.dtype).unsqueeze(2)
            out[rows] = (head_VH[candidates_MK[rows]] @ part).squeeze(2)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_MK: Tensor) -> tuple[Tensor, None, None]:
        head_VH, candidates_MK = ctx.saved_tensors
        out = head_VH.new_empty(len(grad_MK), head_VH.shape[1])
        for rows in _chunks(len(out)):
            part = grad_MK[rows].to(head_VH.dtype).unsqueeze(1)
            out[rows] = (part @ head_VH[candidates_MK[rows]]).squeeze(1)
        return out.to(ctx.dtype), None, None


def _chunks(count: int) -> list[slice]:
    return [slice(start, start + CHUNK_ROWS) for start in range(0, count, CHUNK_ROWS)]
