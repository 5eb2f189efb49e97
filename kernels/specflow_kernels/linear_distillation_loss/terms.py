"""What the loss consists of, one value per row.

Legend: M rows.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Terms(NamedTuple):
    """With drafter q, teacher p, label x: the parts of METHODS 8a. Those that need what was not given are none."""

    ce_M: Tensor | None
    """``-log q(x)``."""
    kl_M: Tensor | None
    """``sum p log(p / q)``."""
    reverse_kl_M: Tensor | None
    """``sum q log(q / p)``."""
    l1_M: Tensor | None
    """``sum |p - q|``, twice the total variation."""
    entropy_M: Tensor | None
    """Of the teacher; no gradient."""
    choice_M: Tensor
    """The drafter's most likely row of the head, the lowest of equals; -1 where a logit is NaN."""
    teacher_choice_M: Tensor | None
    """The same of the teacher, as a place in the drafter's vocabulary."""

    @property
    def soft_ce_M(self) -> Tensor:
        """``-sum p log q``."""
        return _given(self.kl_M) + _given(self.entropy_M)

    @property
    def overlap_M(self) -> Tensor:
        """``sum min(p, q)``: the probability that a proposal drawn from q is accepted."""
        return 1.0 - 0.5 * _given(self.l1_M)

    @property
    def agreement_M(self) -> Tensor:
        """Whether both choose the same."""
        return (self.choice_M == _given(self.teacher_choice_M)) & (self.choice_M >= 0)


def _given(part: Tensor | None) -> Tensor:
    if part is None:
        raise ValueError("this part of the loss needs the teacher's hidden states")
    return part
