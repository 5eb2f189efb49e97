"""The menu of losses (METHODS 8a): how far the drafter's distribution q is from the target's p, with its slope.

Legend: c predicted tokens, L depths at which each is predicted, D vocabulary that both distributions are over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["soft_ce", "kl", "reverse_kl", "ce", "tv", "lk_alpha", "lk_lambda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    kind: Kind = "soft_ce"
    lk_scale: float = 1.0
    lk_decay: float = 3.0

    def of(self, log_q_cLD: Tensor, log_p_cD: Tensor, labels_c: Tensor, there_cL: Tensor) -> tuple[Tensor, Tensor]:
        """``[c, L]`` losses, and ``[c, L, D]`` their slopes for the logits of q. ``log_q_cLD`` is used up.

        ``there_cL``: rows that exist; the others only take up room. ``lk_lambda`` weighs by the mean acceptance over
        the depths of one token, not over a batch, so that the loss does not depend on how a step is split.
        """
        p_cD = log_p_cD.exp()
        if self.kind == "ce":
            labels = labels_c.view(-1, 1, 1).expand(-1, log_q_cLD.shape[1], 1)
            loss = -log_q_cLD.gather(2, labels).squeeze(2)
            slope = log_q_cLD.exp_()
            return loss, slope.scatter_add_(2, labels, slope.new_full((1, 1, 1), -1.0).expand_as(labels))
        if self.kind in ("soft_ce", "kl"):
            loss = -_expected(log_q_cLD, p_cD)
            if self.kind == "kl":
                loss = loss + (p_cD * log_p_cD).sum(dim=1, keepdim=True)
            return loss, log_q_cLD.exp_().sub_(p_cD.unsqueeze(1))
        if self.kind == "reverse_kl":
            q = log_q_cLD.exp()
            ratio = log_q_cLD.sub_(log_p_cD.unsqueeze(1))
            loss = (q * ratio).sum(dim=2)
            return loss, q.mul_(ratio.sub_(loss.unsqueeze(2)))
        return self._by_overlap(log_q_cLD, log_p_cD, p_cD, there_cL)

    def _by_overlap(self, log_q: Tensor, log_p_cD: Tensor, p_cD: Tensor, there_cL: Tensor) -> tuple[Tensor, Tensor]:
        """From ``a = sum min(p, q)``, the probability that a proposal drawn from q is accepted."""
        q, p = log_q.exp(), p_cD.unsqueeze(1)
        overlap = torch.minimum(p, q).sum(dim=2)
        below = q * (q < p)
        slope = below.sub_(q * below.sum(dim=2, keepdim=True))
        if self.kind == "tv":
            return 1.0 - overlap, slope.neg_()
        if self.kind == "lk_alpha":
            least = overlap.clamp_min(torch.finfo(overlap.dtype).tiny)
            return -least.log(), slope.mul_(-1.0 / least.unsqueeze(2))
        mean = (overlap * there_cL).sum(dim=1, keepdim=True) / there_cL.sum(dim=1, keepdim=True).clamp_min(1)
        share = self.lk_scale * torch.exp(-self.lk_decay * mean)
        kl = (p_cD * log_p_cD).sum(dim=1, keepdim=True) - _expected(log_q, p_cD)
        loss = share * kl + (1.0 - share) * (1.0 - overlap)
        slope.mul_(-(1.0 - share).unsqueeze(2)).add_(share.unsqueeze(2) * (q - p))
        return loss, slope


def _expected(values_cLD: Tensor, p_cD: Tensor) -> Tensor:
    """``[c, L]``: mean under p, without a copy of it for every depth."""
    return torch.bmm(values_cLD, p_cD.unsqueeze(2)).squeeze(2)
