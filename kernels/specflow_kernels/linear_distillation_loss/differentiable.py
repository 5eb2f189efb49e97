"""The Triton kernels as one differentiable function.

The slopes of a slice of the vocabulary are written to a scratch tensor and multiplied by the head's and the hidden
rows with PyTorch's own products: accumulators of the hidden size do not fit in a kernel's registers.

Legend: M rows, V drafter's vocabulary, H its hidden size, U teacher's vocabulary, T teacher's hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specflow_kernels.launching import capability_of, launch, power_of_two
from specflow_kernels.linear_distillation_loss.kernels import slope_kernel, statistics_kernel, terms_kernel
from specflow_kernels.linear_distillation_loss.terms import Terms

SLOPES = 1 << 26
"""Slopes held at once: 128 MB in bf16."""
PROGRAMS = 1024
"""Programs that fill a large device a few times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    multiplier: float
    soft_cap: float | None

    @property
    def numbers(self) -> tuple[float, float]:
        return self.multiplier, self.soft_cap or 1.0


def linear_distillation_loss_triton(
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
    """Same as the reference; shapes are checked by ``linear_distillation_loss``. Differentiable once."""
    if teacher_MT is not None and teacher_head_UT is None:
        teacher_head_UT = head_VH
    apply: Any = _Loss.apply
    ce, kl, reverse, l1, entropy, choice, teacher_choice = apply(
        hidden_MH,
        head_VH,
        labels_M,
        None if teacher_MT is None else teacher_MT.detach(),
        None if teacher_head_UT is None else teacher_head_UT.detach(),
        draft_ids_V,
        Settings(multiplier=multiplier, soft_cap=soft_cap),
    )
    return Terms(ce, kl, reverse, l1, entropy, choice, teacher_choice)


def row_statistics(
    hidden: Tensor, head: Tensor, settings: Settings, *, labels: Tensor | None = None, ids: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``[M]`` each: log-sum of exponentials, lowest of the most likely (-1 for NaN), and the label's logit."""
    rows, width = hidden.shape
    vocabulary = head.shape[0] if ids is None else ids.shape[0]
    tiles = _tiles(hidden)
    across, per_split = _splits(rows, vocabulary, tiles)
    shape, device = (across, rows), hidden.device
    largest, sums = (torch.empty(shape, dtype=torch.float32, device=device) for _ in range(2))
    choices = torch.empty(shape, dtype=torch.int32, device=device)
    reached = torch.empty(shape, dtype=torch.float32, device=device) if labels is not None else largest
    launch(
        statistics_kernel, (-(-rows // tiles["BLOCK_M"]), across), hidden, head, _or(ids, head), _or(labels, head),
        largest, sums, choices, reached, rows, vocabulary, width, *settings.numbers, per_split,
        LABELLED=labels is not None, CAPPED=settings.soft_cap is not None, RESTRICTED=ids is not None,
        warps=4 if settings.soft_cap is None else 8, stages=3, **tiles,
    )  # fmt: skip
    most = largest.amax(dim=0)
    log_sums = most + (sums * (largest - most).exp()).sum(dim=0).log()
    choice = torch.where(largest == most, choices, vocabulary).amin(dim=0).long()
    choice = torch.where(log_sums.isnan(), -1, choice)
    return log_sums, choice, None if labels is None else reached.amax(dim=0)


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor | None, teacher: Tensor | None,
        teacher_head: Tensor | None, ids: Tensor | None, settings: Settings,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        hidden, head = hidden.contiguous(), head.contiguous()
        labels, teacher, teacher_head, ids = (
            None if t is None else t.contiguous() for t in (labels, teacher, teacher_head, ids)
        )
        log_sums, choice, reached = row_statistics(hidden, head, settings, labels=labels)
        ce = None if reached is None else log_sums - reached
        kl = reverse = l1 = entropy = leaning = teacher_log_sums = teacher_choice = None
        if teacher is not None and teacher_head is not None:
            teacher_log_sums, teacher_choice, _ = row_statistics(teacher, teacher_head, settings, ids=ids)
            kl, reverse, l1, entropy, leaning = _sums(
                hidden, head, teacher, teacher_head, ids, log_sums, teacher_log_sums, settings
            )
        ctx.settings = settings
        ctx.save_for_backward(
            hidden, head, labels, teacher, teacher_head, ids, log_sums, teacher_log_sums, reverse, leaning
        )
        ctx.mark_non_differentiable(*(t for t in (entropy, choice, teacher_choice) if t is not None))
        ctx.set_materialize_grads(False)
        return ce, kl, reverse, l1, entropy, choice, teacher_choice

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, head = ctx.saved_tensors[:2]
        for_hidden, for_head = ctx.needs_input_grad[:2]
        d_hidden = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device) if for_hidden else None
        d_head = torch.empty_like(head) if for_head else None
        rows, vocabulary = hidden.shape[0], head.shape[0]
        step = max(_tiles(hidden)["BLOCK_V"], power_of_two(SLOPES // max(1, rows)))
        for low in range(0, vocabulary, step):
            part = slice(low, min(low + step, vocabulary))
            slopes = _slopes(ctx, gradients[:4], low=part.start, columns=part.stop - part.start)
            if d_hidden is not None:
                d_hidden += slopes @ head[part]
            if d_head is not None:
                torch.mm(slopes.T, hidden, out=d_head[part])
        return None if d_hidden is None else d_hidden.to(hidden.dtype), d_head, None, None, None, None, None


def _sums(
    hidden: Tensor, head: Tensor, teacher: Tensor, teacher_head: Tensor, ids: Tensor | None, log_sums: Tensor,
    teacher_log_sums: Tensor, settings: Settings,
) -> tuple[Tensor, ...]:  # fmt: skip
    rows, vocabulary = hidden.shape[0], head.shape[0]
    tiles = _tiles(hidden)
    across, per_split = _splits(rows, vocabulary, tiles)
    out = torch.empty((5, across, rows), dtype=torch.float32, device=hidden.device)
    launch(
        terms_kernel, (-(-rows // tiles["BLOCK_M"]), across), hidden, head, teacher, teacher_head, _or(ids, head),
        log_sums, teacher_log_sums, out, rows, vocabulary, hidden.shape[1], teacher.shape[1], *settings.numbers,
        per_split, across, CAPPED=settings.soft_cap is not None, RESTRICTED=ids is not None, warps=8, stages=3, **tiles,
    )  # fmt: skip
    return out.sum(dim=1).unbind()


def _slopes(ctx: Any, gradients: tuple[Tensor | None, ...], *, low: int, columns: int) -> Tensor:
    hidden, head, labels, teacher, teacher_head, ids, log_sums, teacher_log_sums, reverse, leaning = ctx.saved_tensors
    rows, settings, tiles = hidden.shape[0], ctx.settings, _tiles(hidden)
    ce, kl, reversed_kl, l1 = (
        torch.zeros_like(log_sums) if grad is None else grad.to(torch.float32).contiguous() for grad in gradients
    )
    out = torch.empty((rows, columns), dtype=hidden.dtype, device=hidden.device)
    launch(
        slope_kernel, (-(-rows // tiles["BLOCK_M"]), -(-columns // tiles["BLOCK_V"])), hidden, head,
        _or(teacher, hidden), _or(teacher_head, head), _or(ids, head), _or(labels, head), log_sums,
        _or(teacher_log_sums, log_sums), _or(reverse, log_sums), _or(leaning, log_sums), ce, kl, reversed_kl, l1, out,
        rows, head.shape[0], hidden.shape[1], hidden.shape[1] if teacher is None else teacher.shape[1],
        *settings.numbers, low, columns, LABELLED=labels is not None, TAUGHT=teacher is not None,
        CAPPED=settings.soft_cap is not None, RESTRICTED=ids is not None, warps=8, stages=3, **tiles,
    )  # fmt: skip
    return out


def _or(tensor: Tensor | None, stand_in: Tensor) -> Tensor:
    """A kernel's argument that it does not read where there is none."""
    return stand_in if tensor is None else tensor


def _tiles(hidden: Tensor) -> dict[str, Any]:
    if hidden.dtype == torch.float32:  # without tensor cores, on operands that live in registers
        return {"BLOCK_M": 32, "BLOCK_V": 32, "BLOCK_H": 32, "PRECISION": "ieee"}
    # Operands of products live in registers before sm_90.
    columns = 64 if capability_of(hidden) < 90 else 128
    return {"BLOCK_M": 64, "BLOCK_V": columns, "BLOCK_H": 64, "PRECISION": "tf32"}


def _splits(rows: int, vocabulary: int, tiles: dict[str, Any]) -> tuple[int, int]:
    """Parts of the vocabulary, and tiles of each: a function of the shapes only, so that sums repeat."""
    of_rows, of_vocabulary = -(-rows // tiles["BLOCK_M"]), -(-vocabulary // tiles["BLOCK_V"])
    per_split = -(-of_vocabulary // min(of_vocabulary, max(1, PROGRAMS // max(1, of_rows))))
    return -(-of_vocabulary // per_split), per_split
