"""The loss of blocks of proposals, by choice: which distance, and how positions are weighted (METHODS 5, 8a).

Legend: N blocks, M proposals of a block, H hidden size, V rows of the (restricted) head, K candidates of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from specflow.drafters.dpace import Dpace, dpace_weights
from specflow.drafters.row_losses import PLAIN, LogitShape, Mix, RowLosses, row_losses

LossKind = Literal["ce", "kl", "reverse_kl", "l1", "tv", "lk_alpha", "lk_lambda"]
Weighting = Literal["decay"] | Dpace

_MIXES: dict[LossKind, tuple[Mix, ...]] = {
    "kl": ({"kl": 1.0},),
    "reverse_kl": ({"reverse_kl": 1.0},),
    "l1": ({"overlap": 1.0},),
    "tv": ({"overlap": 1.0},),
    "lk_alpha": ({"overlap": 1.0},),
    "lk_lambda": ({"kl": 1.0}, {"overlap": 1.0}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLoss:
    kind: LossKind = "ce"
    soft_targets: float = 0.0
    """Of ``ce``: share of the target that is the teacher's distribution."""
    lk_scale: float = 1.0
    lk_decay: float = 3.0
    weighting: Weighting = "decay"
    dpace_smoothing: float = 0.5

    @property
    def taught(self) -> bool:
        """Whether it reads the target's last hidden states."""
        return self.kind != "ce" or self.soft_targets > 0

    @property
    def mixes(self) -> tuple[Mix, ...]:
        if self.kind == "ce":
            return ({"ce": 1.0 - self.soft_targets, "soft_ce": self.soft_targets},)
        return _MIXES[self.kind]

    @property
    def labels_decide(self) -> bool:
        """Whether the denominator is known without a forward pass."""
        return self.weighting == "decay"


class BlockSums(NamedTuple):
    numerator: Tensor
    denominator: Tensor
    candidates_RK: Tensor
    """Of the R valid rows, in order: the K most likely rows of the head, increasing."""


def block_loss(
    hidden_NMH: Tensor,
    head_VH: Tensor,
    labels_NM: Tensor,
    valid_NM: Tensor,
    *,
    loss: BlockLoss,
    weights_NM: Tensor,
    teacher_NMH: Tensor | None = None,
    shape: LogitShape = PLAIN,
    top_k: int = 0,
) -> BlockSums:
    """``(sum w loss, sum w)`` over the valid rows; the first has a gradient.

    ``labels_NM`` index rows of ``head_VH``; rows that are not valid never reach the head. ``weights_NM`` are those of
    ``decay``; the other weightings follow from the drafter's own probabilities.
    """
    found = row_losses(
        hidden_NMH[valid_NM],
        head_VH,
        labels_NM[valid_NM],
        loss.mixes,
        teacher_MH=teacher_NMH[valid_NM] if loss.taught and teacher_NMH is not None else None,
        shape=shape,
        top_k=top_k,
    )
    losses_R = _combined(found, valid_NM, loss)
    weights_R = weights_NM[valid_NM]
    if loss.weighting != "decay":
        q_NM = _spread(found.label_log_q_M.exp(), valid_NM)
        weights_R = dpace_weights(q_NM, valid_NM, smoothing=loss.dpace_smoothing, form=loss.weighting)[valid_NM]
    return BlockSums((losses_R * weights_R).sum(), weights_R.sum(), found.candidates_MK)


def _combined(found: RowLosses, valid_NM: Tensor, loss: BlockLoss) -> Tensor:
    first, last = found.losses[0], found.losses[-1]
    forms: dict[LossKind, Callable[[], Tensor]] = {
        "l1": lambda: 2.0 * (1.0 - first),
        "tv": lambda: 1.0 - first,
        "lk_alpha": lambda: -first.clamp_min(torch.finfo(first.dtype).tiny).log(),
        "lk_lambda": lambda: _lk_lambda(first, last, valid_NM, loss),
    }
    form = forms.get(loss.kind)
    return form() if form else first


def _lk_lambda(kl_R: Tensor, overlap_R: Tensor, valid_NM: Tensor, loss: BlockLoss) -> Tensor:
    """``w kl + (1 - w) (1 - a)``, ``w = scale exp(-decay mean a)``, the mean over the rows of a block.

    Of a block and not of a batch, so that the loss does not depend on how a step is split into passes.
    """
    overlap_NM = _spread(overlap_R.detach(), valid_NM)
    mean_N1 = overlap_NM.sum(dim=1, keepdim=True) / valid_NM.sum(dim=1, keepdim=True).clamp_min(1)
    w_R = (loss.lk_scale * torch.exp(-loss.lk_decay * mean_N1)).expand_as(overlap_NM)[valid_NM]
    return w_R * kl_R + (1.0 - w_R) * (1.0 - overlap_R)


def _spread(values_R: Tensor, valid_NM: Tensor) -> Tensor:
    """``[N, M]``, 0 where not valid."""
    return values_R.new_zeros(valid_NM.shape).masked_scatter(valid_NM, values_R)
