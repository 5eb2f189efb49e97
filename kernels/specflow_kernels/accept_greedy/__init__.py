"""Greedy acceptance of draft chains over a batch: PyTorch reference, and its Triton kernel on CUDA.

Legend: B requests, M proposals per request, R >= M + 1 rows judged by the target.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specflow_kernels.accept_greedy.reference import accept_greedy_reference
from specflow_kernels.choice import Choice, choose


def accept_greedy(draft_BM: Tensor, target_BR: Tensor) -> tuple[Tensor, Tensor]:
    """``(accepted_B, bonus_B)``: how many leading proposals the target chose too, and its next token.

    ``target_BR[b, i]`` is the target's choice after the anchor and proposals ``1..i``. ``draft_BM`` int64.
    Rows of the target behind the ``M + 1`` first are ignored. Raises ``ValueError`` if shapes do not fit.
    """
    if draft_BM.shape[0] != target_BR.shape[0] or target_BR.shape[1] < draft_BM.shape[1] + 1:
        raise ValueError(
            f"drafts {tuple(draft_BM.shape)} need a target of shape (B, at least M + 1), found {tuple(target_BR.shape)}"
        )
    if draft_BM.is_cuda and explain(draft_BM, target_BR).kernel:
        from specflow_kernels.accept_greedy.launching import accept_greedy_triton

        return accept_greedy_triton(draft_BM, target_BR)
    return accept_greedy_reference(draft_BM, target_BR)


def explain(draft_BM: Tensor, target_BR: Tensor) -> Choice:
    """What :func:`accept_greedy` would run for these tensors, and why."""
    return choose((draft_BM, target_BR), dtypes=(torch.int64,))
