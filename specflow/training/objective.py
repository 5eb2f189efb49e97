"""The loss of one pass as one module call, so that DDP and FSDP see the network used through a single forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from specflow.drafters.training import Learner, Progress


class Objective(nn.Module):
    """``sum over terms of weight * numerator / denominator``; the denominators are those of the whole step."""

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.network = learner.network
        self._learner = learner

    def forward(
        self, batch: Any | None, denominators: Mapping[str, float], progress: Progress, every_parameter: bool
    ) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
        """The pass's share of the loss, and per term its numerator and denominator.

        ``batch`` none: zero. ``every_parameter``: each parameter gets a gradient, be it zero, because the other ranks
        wait for it. A term without a denominator in the whole step counts zero.
        """
        parts: list[Tensor] = []
        sums: dict[str, tuple[Tensor, Tensor]] = {}
        if batch is not None:
            weights = self._learner.weights(progress)
            for term in self._learner.objective(batch, progress):
                sums[term.name] = (term.numerator.detach(), term.denominator.detach())
                if denominators[term.name] > 0:
                    ratio = term.numerator / denominators[term.name]
                    parts.append(ratio if weights[term.name] == 1.0 else ratio * weights[term.name])
        if every_parameter or not parts:
            parts.append(_zero(self.network))
        return torch.stack(parts).sum() if len(parts) > 1 else parts[0], sums


def _zero(network: nn.Module) -> Tensor:
    """0, with a zero gradient for every parameter that is trained, whatever its value."""
    apply: Any = _Zero.apply
    result: Tensor = apply(*(p for p in network.parameters() if p.requires_grad))
    return result


class _Zero(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> Tensor:
        ctx.like = parameters
        return torch.zeros((), dtype=torch.float32, device=parameters[0].device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.zeros_like(parameter) for parameter in ctx.like)
