"""The selector's loss (METHODS 7): strict top-K cross-entropy among the candidates, with the text's own predecessors.

Legend: N blocks, M proposals of a block, R valid rows of all blocks, K candidates of a row, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specflow.drafters.candidates import candidate_logits
from specflow.drafters.dflash2.selector import CandidateSelector
from specflow.drafters.row_losses import LogitShape


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorLoss:
    """How the selector's loss enters the whole."""

    weight: float = 1.0
    warmup: float = 0.0
    """Share of the steps before it begins."""
    ramp: float = 0.1
    """Share of the steps, after these, in which its weight grows."""
    stop_gradient: bool = False

    def at(self, share: float) -> float:
        """The weight after ``share`` of the steps."""
        if share < self.warmup:
            return 0.0
        grown = (share - self.warmup) / self.ramp if self.ramp else 1.0
        return self.weight * min(1.0, grown)


class SelectorSums(NamedTuple):
    numerator: Tensor
    """``- sum w log q_sel(x* | x*_prev)`` over the rows whose token is a candidate; with gradient."""
    missed: Tensor
    """``sum w`` over the other rows, which give no gradient."""


def selector_loss(
    selector: CandidateSelector,
    hidden_RH: Tensor,
    head_VH: Tensor,
    *,
    candidates_RK: Tensor,
    candidate_tokens_RK: Tensor,
    labels_R: Tensor,
    previous_R: Tensor,
    weights_R: Tensor,
    shape: LogitShape,
    stop_gradient: bool = False,
) -> SelectorSums:
    """``candidates_RK`` and ``labels_R`` are rows of ``head_VH``, ``candidate_tokens_RK`` and ``previous_R`` tokens.

    ``stop_gradient``: none of it reaches ``hidden_RH``.
    """
    is_label_RK = candidates_RK == labels_R.unsqueeze(1)
    there_R = is_label_RK.any(dim=1)
    hidden = hidden_RH[there_R].detach() if stop_gradient else hidden_RH[there_R]
    own = shape.of(candidate_logits(hidden, head_VH, candidates_RK[there_R]))
    pairs = selector.pairs(hidden, previous_R[there_R].unsqueeze(1), candidate_tokens_RK[there_R]).squeeze(1)
    scores = own + pairs
    log_q = scores.log_softmax(dim=1, dtype=torch.promote_types(scores.dtype, torch.float32))
    place = is_label_RK[there_R].long().argmax(dim=1, keepdim=True)
    reached = log_q.gather(1, place).squeeze(1)
    return SelectorSums(-(reached * weights_R[there_R]).sum(), weights_R[~there_R].sum())
