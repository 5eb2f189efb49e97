"""Losses of single rows through a frozen head (METHODS 8a), without ever holding rows x vocabulary.

With the teacher's distribution p, the drafter's q and the label x*: ``ce = -log q(x*)``, ``soft_ce = -sum p log q``,
``kl = sum p log(p/q)``, ``reverse_kl = sum q log(q/p)``, ``overlap = sum min(p, q)``. All others follow from these.

Legend: M rows, H hidden size, V vocabulary (or a restricted list of it), K candidates of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specflow.drafters.candidates import largest

CHUNK_LOGITS = 1 << 22
"""Logits held at once: 16 MB in fp32, three times that at the peak."""

Mix = Mapping[str, float]
"""A sum of terms by name, each with its factor."""
TERMS = ("ce", "soft_ce", "kl", "reverse_kl", "overlap")
TAUGHT = frozenset(TERMS) - {"ce"}
"""Terms that need a teacher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitShape:
    """What a drafter does to the head's product: ``cap * tanh(multiplier * z / cap)``; without a cap the product."""

    multiplier: float = 1.0
    softcap: float | None = None

    @property
    def plain(self) -> bool:
        return self.multiplier == 1.0 and self.softcap is None

    def of(self, logits: Tensor) -> Tensor:
        """At least fp32, the same object where nothing changes. Increasing in every logit, so order is kept."""
        if self.plain:
            return logits
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        shaped = wide * self.multiplier
        return shaped if self.softcap is None else torch.tanh(shaped / self.softcap) * self.softcap

    def slope(self, shaped: Tensor) -> Tensor:
        """Derivative of ``of``, from its result."""
        if self.softcap is None:
            return torch.full_like(shaped, self.multiplier)
        return (1.0 - (shaped / self.softcap).square()) * self.multiplier


PLAIN = LogitShape()


class RowLosses(NamedTuple):
    losses: tuple[Tensor, ...]
    """``[M]`` for every mix asked for, differentiable once with respect to the hidden rows."""
    label_log_q_M: Tensor
    """``log q(x*)``, without gradient."""
    candidates_MK: Tensor
    """The K most likely rows of the head, increasing; of equal ones the lowest. Empty where K is 0."""


def row_losses(
    hidden_MH: Tensor,
    head_VH: Tensor,
    labels_M: Tensor,
    mixes: Sequence[Mix],
    *,
    teacher_MH: Tensor | None = None,
    shape: LogitShape = PLAIN,
    top_k: int = 0,
    chunk_rows: int | None = None,
) -> RowLosses:
    """Every mix of terms for every row, at least fp32; the weighting of rows is left to the caller.

    ``teacher_MH``: the target's hidden states after its final norm at the rows that predict the labels; no gradient
    reaches it. Both distributions are over the rows of ``head_VH``; ``shape`` is the drafter's alone. Raises
    ``ValueError`` on unknown terms, and on terms that need a teacher where there is none.
    """
    wanted = {name for mix in mixes for name, factor in mix.items() if factor}
    if wanted - set(TERMS):
        raise ValueError(f"unknown terms {sorted(wanted - set(TERMS))}; known: {', '.join(TERMS)}")
    if wanted & TAUGHT and teacher_MH is None:
        raise ValueError(f"{sorted(wanted & TAUGHT)} need the teacher's hidden states, found none")
    rows = chunk_rows or max(1, CHUNK_LOGITS // head_VH.shape[0])
    kind = hidden_MH.device.type
    if torch.is_autocast_enabled(kind):
        head_VH = head_VH.to(torch.get_autocast_dtype(kind))  # once, not for every chunk
    plans = tuple(tuple(mix.get(name, 0.0) for name in TERMS) for mix in mixes)
    apply: Any = _RowLosses.apply
    with torch.autocast(kind, enabled=False):
        *losses, log_q, candidates = apply(hidden_MH, head_VH, labels_M, teacher_MH, plans, shape, top_k, rows)
    return RowLosses(tuple(losses), log_q, candidates)


class _RowLosses(torch.autograd.Function):
    """The head is frozen and a row's losses depend on its own hidden vector only, so their gradients for it are known
    in the forward pass and are all that is kept: two products instead of the three of recomputation."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_MH: Tensor,
        head_VH: Tensor,
        labels_M: Tensor,
        teacher_MH: Tensor | None,
        plans: tuple[tuple[float, ...], ...],
        shape: LogitShape,
        top_k: int,
        chunk_rows: int,
    ) -> tuple[Tensor, ...]:
        wide, count = torch.promote_types(head_VH.dtype, torch.float32), hidden_MH.shape[0]
        losses = [hidden_MH.new_empty(count, dtype=wide) for _ in plans]
        gradients = [torch.empty_like(hidden_MH) for _ in plans] if ctx.needs_input_grad[0] else []
        label_log_q = hidden_MH.new_empty(count, dtype=wide)
        candidates = labels_M.new_empty(count, top_k)
        taught = any(any(plan[1:]) for plan in plans)
        for start in range(0, count, chunk_rows):
            rows = slice(start, start + chunk_rows)
            logits = _logits(hidden_MH[rows], head_VH)
            if top_k:
                candidates[rows] = largest(logits, top_k)
            shaped = shape.of(logits)
            slope_of_shape = None if shape.plain or not gradients else shape.slope(shaped)
            chunk = _Chunk(
                log_q=shaped.log_softmax(dim=1, dtype=wide),
                label=labels_M[rows].unsqueeze(1),
                log_p=_logits(teacher_MH[rows], head_VH).log_softmax(dim=1, dtype=wide)
                if taught and teacher_MH is not None
                else None,
            )
            label_log_q[rows] = chunk.label_log_q
            for plan, loss in zip(plans, losses, strict=True):
                loss[rows] = chunk.value(plan)
            for index, gradient in enumerate(gradients):
                slope = chunk.slope(plans[index], last=index == len(plans) - 1)
                if slope_of_shape is not None:
                    slope = slope * slope_of_shape
                gradient[rows] = (slope.to(head_VH.dtype) @ head_VH).to(gradient.dtype)
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(label_log_q, candidates)
        return (*losses, label_log_q, candidates)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        parts = zip(ctx.saved_tensors, grads, strict=False)
        own: Tensor = torch.stack([g * grad.unsqueeze(1).to(g.dtype) for g, grad in parts]).sum(dim=0)
        return (own, *[None] * 7)


class _Chunk:
    """Some rows' distributions: ``[c, V]`` each."""

    def __init__(self, *, log_q: Tensor, label: Tensor, log_p: Tensor | None) -> None:
        self._log_q, self._label, self._log_p = log_q, label, log_p
        self._p = None if log_p is None else log_p.exp()
        self._q: Tensor | None = None
        self.label_log_q = log_q.gather(1, label).squeeze(1)

    def value(self, plan: tuple[float, ...]) -> Tensor:
        ce, soft_ce, kl, reverse_kl, overlap = plan
        found = self.label_log_q * -ce
        if self._p is None or self._log_p is None:
            return found
        if soft_ce or kl:
            found = found - torch.linalg.vecdot(self._p, self._log_q) * (soft_ce + kl)
        if kl:
            found = found + torch.linalg.vecdot(self._p, self._log_p) * kl
        if reverse_kl:
            found = found + torch.linalg.vecdot(self._log_q.exp(), self._log_q - self._log_p) * reverse_kl
        if overlap:
            found = found + torch.minimum(self._p, self._log_q.exp()).sum(dim=1) * overlap
        return found

    def slope(self, plan: tuple[float, ...], *, last: bool) -> Tensor:
        """Derivative for the logits. After the ``last`` one the chunk is used up."""
        ce, soft_ce, kl, reverse_kl, overlap = plan
        simple = last and not reverse_kl and not overlap and self._q is None
        if simple:
            q = self._log_q.exp_()
        else:
            q = self._q = self._log_q.exp() if self._q is None else self._q
        mass = ce + soft_ce + kl
        slope = q if simple else q.clone()
        if mass != 1.0:
            slope.mul_(mass)
        if ce:
            slope.scatter_add_(1, self._label, slope.new_full(self._label.shape, -ce))
        if self._p is not None and soft_ce + kl:
            slope.sub_(self._p, alpha=soft_ce + kl)
        if reverse_kl and self._log_p is not None:
            ratio = self._log_q - self._log_p
            mean = torch.linalg.vecdot(q, ratio).unsqueeze(1)
            slope.addcmul_(q, ratio.sub_(mean), value=reverse_kl)
        if overlap and self._p is not None:
            below = q * (q < self._p)
            slope.add_(below.sub_(q * below.sum(dim=1, keepdim=True)), alpha=overlap)
        return slope


def _logits(hidden_MH: Tensor, head_VH: Tensor) -> Tensor:
    return hidden_MH.to(head_VH.dtype) @ head_VH.T
