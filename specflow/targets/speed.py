"""Replaces a loaded model's modules by quicker ones that compute the same, without knowing the model.

What shares an input, and what a norm computes, is observed on a probe, never guessed from names
alone; what cannot be shown to be equal stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from specflow.targets.fused import fused_blocks
from specflow.targets.linear import (
    InferenceLinear,
    PackingReport,
    Product,
    dense_product,
    group,
    packed_product,
)


class FastRMSNorm(nn.Module):
    """``x / rms(x) * weight`` in five calls of torch; its own ``rms_norm`` makes more than ten on a CPU."""

    def __init__(self, weight_H: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight_H, requires_grad=False)
        self.eps = nn.Buffer(torch.tensor(eps, device=weight_H.device), persistent=False)
        self.inverse_size = 1.0 / weight_H.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.addcmul(self.eps, norm, norm, value=self.inverse_size).rsqrt_()
        return (x * scale).to(x.dtype).mul_(self.weight)


@dataclass(slots=True)
class Replacements:
    """Modules that were replaced, so that all of it can be undone."""

    done: list[tuple[nn.Module, str, nn.Module]] = field(default_factory=list)

    def replace(self, root: nn.Module, name: str, new: nn.Module) -> None:
        parent_name, _, attribute = name.rpartition(".")
        parent = root.get_submodule(parent_name)
        self.done.append((parent, attribute, getattr(parent, attribute)))
        setattr(parent, attribute, new)

    def undo(self) -> None:
        for parent, attribute, original in reversed(self.done):
            setattr(parent, attribute, original)
        self.done.clear()


def replace_norms(model: nn.Module, replaced: Replacements) -> None:
    """Replace RMS norms by a quicker form, where it gives the same on random rows."""
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            fast = _fast_norm(module)
            if fast is not None:
                replaced.replace(model, name, fast)


@torch.no_grad()
def _fast_norm(module: nn.Module) -> FastRMSNorm | None:
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(weight, Tensor) or not isinstance(eps, float) or weight.ndim != 1:
        return None
    rows = torch.randn(4, weight.shape[0], generator=torch.Generator().manual_seed(0)).to(weight)
    expected = module(rows)
    tolerance = 1e-5 if weight.dtype == torch.float32 else 2e-2
    for candidate in (weight.detach(), (1.0 + weight.detach().float()).to(weight.dtype)):
        fast = FastRMSNorm(candidate.clone(), eps)
        if torch.allclose(fast(rows), expected, rtol=tolerance, atol=tolerance):
            return fast
    return None


def replace_blocks(model: nn.Module, replaced: Replacements, report: PackingReport | None) -> None:
    """Replace attention and MLP modules by fused ones, packed if there is a ``report`` to fill."""
    for name, fused in list(fused_blocks(model, partial(_product, report))):
        replaced.replace(model, name, fused)


def _product(report: PackingReport | None, weight: Tensor, bias: Tensor | None, name: str) -> Product:
    return dense_product(weight, bias) if report is None else packed_product(weight, bias, report, name=name)


def replace_linears(
    model: nn.Module, replaced: Replacements, run: Callable[[], object], report: PackingReport | None
) -> None:
    """Compute the linear layers left that share an input together, and pack them if there is a ``report`` to fill.

    ``run`` runs the model once; while it does, which layers read which tensor is observed.
    """
    linears = {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
    grouped: set[str] = set()
    for names in _shared_inputs(linears, run):
        grouped.update(names)
        parts = group([linears[name] for name in names], partial(_product, report, name=names[0]))
        for name, part in zip(names, parts, strict=True):
            replaced.replace(model, name, part)
    for name, linear in linears.items():
        if name not in grouped:
            product = _product(report, linear.weight, linear.bias, name)
            new = InferenceLinear(product, in_features=linear.in_features, out_features=linear.out_features)
            replaced.replace(model, name, new)


def _shared_inputs(linears: dict[str, nn.Linear], run: Callable[[], object]) -> list[list[str]]:
    """Names of layers that were called once each, in this order, with the same tensor object."""
    calls: list[tuple[str, Tensor]] = []

    def note(name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        calls.append((name, inputs[0]))

    handles = [module.register_forward_pre_hook(partial(note, name)) for name, module in linears.items()]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    names = [name for name, _ in calls]
    groups: dict[tuple[str, int], list[str]] = {}
    for name, tensor in calls:  # `calls` keeps the tensors alive, so an id names one tensor
        if names.count(name) == 1:
            groups.setdefault((name.rpartition(".")[0], id(tensor)), []).append(name)
    return [members for members in groups.values() if len(members) > 1]
