"""Distillation losses through a linear head, without rows x vocabulary on CUDA (METHODS 8a).

Legend: M rows, V drafter's vocabulary, H its hidden size, U teacher's vocabulary, T teacher's hidden size.
"""

from __future__ import annotations

from torch import Tensor

from specflow_kernels.choice import Choice, choose
from specflow_kernels.linear_distillation_loss.reference import linear_distillation_loss_reference
from specflow_kernels.linear_distillation_loss.terms import Terms


def linear_distillation_loss(
    hidden_MH: Tensor,
    head_VH: Tensor,
    *,
    labels_M: Tensor | None = None,
    teacher_MT: Tensor | None = None,
    teacher_head_UT: Tensor | None = None,
    draft_ids_V: Tensor | None = None,
    multiplier: float = 1.0,
    soft_cap: float | None = None,
) -> Terms:
    """Cross-entropy, KL both ways, L1 and the choices of every row; see :class:`Terms`.

    The drafter's logits are ``cap * tanh(multiplier * hidden @ head.T / cap)``, without a cap the product alone. The
    teacher's are the same of ``teacher_MT`` and its head (by default the drafter's). With ``draft_ids_V`` the teacher's
    distribution is over those rows of its head, the drafter's vocabulary in order. Gradients reach hidden rows and head
    of the drafter, once. ``labels_M`` int64, ``0 <= label < V``; a label outside has an infinite cross-entropy on CUDA.

    Raises ``ValueError`` if shapes do not fit.
    """
    _check(hidden_MH, head_VH, labels_M, teacher_MT, teacher_head_UT, draft_ids_V, soft_cap)
    choice = explain(
        hidden_MH, head_VH, labels_M=labels_M, teacher_MT=teacher_MT, teacher_head_UT=teacher_head_UT,
        draft_ids_V=draft_ids_V,
    )  # fmt: skip
    run = linear_distillation_loss_reference
    if choice.kernel:
        from specflow_kernels.linear_distillation_loss.differentiable import linear_distillation_loss_triton

        run = linear_distillation_loss_triton
    return run(
        hidden_MH, head_VH, labels_M=labels_M, teacher_MT=teacher_MT, teacher_head_UT=teacher_head_UT,
        draft_ids_V=draft_ids_V, multiplier=multiplier, soft_cap=soft_cap,
    )  # fmt: skip


def explain(
    hidden_MH: Tensor,
    head_VH: Tensor,
    *,
    labels_M: Tensor | None = None,
    teacher_MT: Tensor | None = None,
    teacher_head_UT: Tensor | None = None,
    draft_ids_V: Tensor | None = None,
    multiplier: float = 1.0,
    soft_cap: float | None = None,
) -> Choice:
    """What :func:`linear_distillation_loss` would run for these tensors, and why."""
    given = (hidden_MH, head_VH, labels_M, teacher_MT, teacher_head_UT, draft_ids_V)
    return choose(
        (t for t in given if t is not None),
        refusals=((hidden_MH.shape[0] == 0, "no rows"),),
    )


def _check(
    hidden: Tensor, head: Tensor, labels: Tensor | None, teacher: Tensor | None, teacher_head: Tensor | None,
    ids: Tensor | None, soft_cap: float | None,
) -> None:  # fmt: skip
    rows, width = hidden.shape
    problems = []
    if head.shape[1] != width:
        problems.append(f"head {tuple(head.shape)}, expected (V, {width})")
    if labels is not None and tuple(labels.shape) != (rows,):
        problems.append(f"labels {tuple(labels.shape)}, expected ({rows},)")
    if labels is None and teacher is None:
        problems.append("neither labels nor a teacher, expected one at least")
    if teacher is None and (teacher_head is not None or ids is not None):
        problems.append("a teacher's head or draft ids without the teacher's hidden states")
    if teacher is not None:
        of_teacher = head if teacher_head is None else teacher_head
        if tuple(teacher.shape) != (rows, of_teacher.shape[1]):
            problems.append(f"teacher {tuple(teacher.shape)}, expected ({rows}, {of_teacher.shape[1]})")
        vocabulary = of_teacher.shape[0] if ids is None else ids.shape[0]
        if vocabulary != head.shape[0]:
            problems.append(f"the teacher's vocabulary has {vocabulary} rows, expected {head.shape[0]}")
    if soft_cap is not None and not soft_cap > 0:
        problems.append(f"soft cap {soft_cap}, expected above 0")
    if problems:
        raise ValueError(f"hidden {tuple(hidden.shape)} does not fit: {'; '.join(problems)}")
