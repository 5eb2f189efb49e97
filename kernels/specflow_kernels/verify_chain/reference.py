"""Verification of chains request by request: what the kernel must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow_kernels.drawing import draw, lowest_argmax


def verify_chain_reference(
    draft_BM: Tensor,
    target_BRV: Tensor,
    *,
    greedy_B: Tensor,
    coins_BR: Tensor,
    q_BMV: Tensor | None = None,
    judged_B: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``(accepted_B, next_B)``; arguments as in ``verify_chain``."""
    limits = [draft_BM.shape[1]] * draft_BM.shape[0] if judged_B is None else judged_B.tolist()
    found = [
        _greedy(draft_BM[b, :limit], target_BRV[b])
        if bool(greedy_B[b])
        else _sampled(draft_BM[b, :limit], target_BRV[b].float(), coins_BR[b], None if q_BMV is None else q_BMV[b])
        for b, limit in enumerate(limits)
    ]
    both = torch.tensor(found, dtype=torch.int64, device=draft_BM.device).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _greedy(draft_M: Tensor, target_RV: Tensor) -> tuple[int, int]:
    for i, token in enumerate(draft_M.tolist()):
        choice = lowest_argmax(target_RV[i])
        if choice != token:
            return (-1, -1) if choice < 0 else (i, choice)
    choice = lowest_argmax(target_RV[draft_M.shape[0]])
    return (-1, -1) if choice < 0 else (draft_M.shape[0], choice)


def _sampled(draft_M: Tensor, p_RV: Tensor, coins_R: Tensor, q_MV: Tensor | None) -> tuple[int, int]:
    for i, token in enumerate(draft_M.tolist()):
        p_V = p_RV[i]
        q = 1.0 if q_MV is None else float(q_MV[i, token])
        p = float(p_V[token])
        if not p >= 0.0 or not q > 0.0:
            return -1, -1
        if coins_R[i] * q < p:
            continue
        rest_V = p_V.clone() if q_MV is None else (p_V - q_MV[i].float()).clamp_min(0.0)
        if q_MV is None:
            rest_V[token] = 0.0
        if float(rest_V.sum()) == 0.0:  # p and q are equal but for rounding
            rest_V = p_V
        return _refused_or(i, draw(rest_V, float(coins_R[-1])))
    return _refused_or(draft_M.shape[0], draw(p_RV[draft_M.shape[0]], float(coins_R[-1])))


def _refused_or(accepted: int, token: int) -> tuple[int, int]:
    return (-1, -1) if token < 0 else (accepted, token)
