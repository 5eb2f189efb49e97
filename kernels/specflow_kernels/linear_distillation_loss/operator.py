"""Examples and cost of the distillation losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specflow_kernels.cost import Cost, bytes_of
from specflow_kernels.linear_distillation_loss import explain, liger, linear_distillation_loss
from specflow_kernels.linear_distillation_loss.reference import linear_distillation_loss_reference
from specflow_kernels.linear_distillation_loss.terms import Terms
from specflow_kernels.operator import Case, Operator
from specflow_kernels.peers import Peer

PER_LOGIT = 20
"""Operations of the softmaxes and sums for every logit pair."""


def make(
    device: torch.device, *, rows: int, width: int, vocabulary: int, draft_vocabulary: int | None = None,
    soft_cap: float | None = None, dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:  # fmt: skip
    head = torch.randn(vocabulary, width, device=device, dtype=dtype) * width**-0.5
    own = torch.randn(draft_vocabulary, width, device=device, dtype=dtype) if draft_vocabulary else head
    return {
        "hidden_MH": torch.randn(rows, width, device=device, dtype=dtype),
        "head_VH": own,
        "labels_M": torch.randint(own.shape[0], (rows,), device=device),
        "teacher_MT": torch.randn(rows, width, device=device, dtype=dtype),
        "teacher_head_UT": head,
        "draft_ids_V": None
        if draft_vocabulary is None
        else torch.arange(draft_vocabulary, device=device) * (vocabulary // draft_vocabulary),
        "soft_cap": soft_cap,
    }


def cost(
    hidden_MH: Tensor, head_VH: Tensor, *, labels_M: Tensor | None = None, teacher_MT: Tensor | None = None, **_: Any
) -> Cost:
    """One product per model; the kernel computes each twice, which the share of the limit shows."""
    rows, (vocabulary, width) = hidden_MH.shape[0], head_VH.shape
    operations = 2 * rows * vocabulary * width
    moved = bytes_of((hidden_MH, head_VH)) + 4 * 5 * rows
    if teacher_MT is not None:
        operations += 2 * rows * vocabulary * teacher_MT.shape[1] + PER_LOGIT * rows * vocabulary
        moved += bytes_of((teacher_MT,)) + vocabulary * teacher_MT.shape[1] * teacher_MT.element_size()
    return Cost(bytes=moved, operations=operations)


def backward_cost(hidden_MH: Tensor, head_VH: Tensor, **inputs: Any) -> Cost:
    """The logits again, then their slopes times the head."""
    forward = cost(hidden_MH, head_VH, **inputs)
    product = 2 * hidden_MH.shape[0] * head_VH.numel()
    return Cost(bytes=forward.bytes + bytes_of((hidden_MH,)), operations=forward.operations + product)


def kernel(**inputs: Any) -> Terms:
    from specflow_kernels.linear_distillation_loss.differentiable import linear_distillation_loss_triton

    return linear_distillation_loss_triton(**inputs)


OPERATOR = Operator(
    name="linear_distillation_loss",
    summary="cross-entropy, KL, L1 and agreement through a head, over tiles of the vocabulary",
    public=linear_distillation_loss,
    kernel=kernel,
    reference=linear_distillation_loss_reference,
    explain=explain,
    cost=cost,
    backward_cost=backward_cost,
    differentiable=("hidden_MH",),
    peers={
        "Liger cross-entropy": Peer(
            package="liger-kernel", computes="the cross-entropy alone, without a teacher", prepare=liger.cross_entropy
        ),
        "Liger KL": Peer(
            package="liger-kernel", computes="KL of teacher and drafter alone, without labels", prepare=liger.divergence
        ),
    },
    cases=(
        Case(
            name="SmolLM2-135M, quickstart",
            make=lambda device: make(device, rows=160, width=576, vocabulary=49152),
        ),
        Case(
            name="8B, 3584 rows",
            make=lambda device: make(device, rows=3584, width=4096, vocabulary=151936),
        ),
        Case(
            name="8B, draft vocabulary, soft cap",
            make=lambda device: make(
                device, rows=2048, width=4096, vocabulary=151936, draft_vocabulary=32000, soft_cap=30.0
            ),
        ),
    ),
)
