"""Cross-entropy through a frozen head, against tokens or partly against the target's distribution.

Legend: M rows, H hidden size, V vocabulary (or a restricted list of it).
"""

from __future__ import annotations

from torch import Tensor

from specflow.drafters.row_losses import row_losses


def target_cross_entropy(
    hidden_MH: Tensor,
    head_VH: Tensor,
    labels_M: Tensor,
    *,
    teacher_MH: Tensor | None = None,
    share: float = 0.0,
    chunk_rows: int | None = None,
) -> Tensor:
    """``[M]`` fp32 cross-entropies against ``(1 - share) * onehot(label) + share * softmax(teacher @ head.T)``.

    ``teacher_MH``: the target's hidden states after its final norm at the rows that predict the labels; no gradient
    reaches it. Both distributions are over the rows of ``head_VH``. Differentiable once, with respect to ``hidden_MH``
    only. The weighting of rows is left to the caller. Raises ``ValueError`` if a share above 0 has no
    teacher.
    """
    if share > 0 and teacher_MH is None:
        raise ValueError(f"a share of {share} of soft targets needs the teacher's hidden states")
    mix = {"ce": 1.0 - share, "soft_ce": share}
    found = row_losses(hidden_MH, head_VH, labels_M, [mix], teacher_MH=teacher_MH, chunk_rows=chunk_rows)
    return found.losses[0]
