"""Linear layers for inference: fp16-packed weights, and several layers of one input computed at once.

Packed weights are held in fp16 and multiplied by fp32 activations with fp32 accumulation (fbgemm). For a
CPU without bf16 units that halves the memory traffic, which is what a decoding step waits for.
A row of a packed product does not depend on which other rows are in the pass beyond fp32 rounding:
the kernels for one, two and more rows add in different orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from specflow_kernels.packed_linear import FP16_LARGEST, PackedLinear
from torch import Tensor, nn

from specflow.targets.base import TargetError

Product = Callable[[Tensor], Tensor]


@dataclass(slots=True, kw_only=True)
class PackingReport:
    """What packing to fp16 did to the weights, summed over all linear layers."""

    layers: int = 0
    values: int = 0
    inexact: int = 0
    """Values fp16 cannot represent exactly; for bf16 checkpoints only magnitudes below 2**-17, by at most 2**-25."""
    max_error: float = 0.0
    """Largest absolute change of a weight."""
    max_abs: float = 0.0


def dense_product(weight_OI: Tensor, bias_O: Tensor | None) -> Product:
    """``x -> x @ weight.T + bias``.

    MKL reads a single row's fp32 weights up to 1.7 times faster in column order where there are more outputs than
    inputs (two Zen 1 cores: 12.5 instead of 7.9 GB/s for 3072 x 576), and several rows no slower.
    """
    weight = weight_OI.detach()
    if weight.dtype == torch.float32 and weight.device.type == "cpu" and weight.shape[0] > weight.shape[1]:
        weight = weight.t().contiguous().t()
    return lambda x: F.linear(x, weight, bias_O)


def packed_product(weight_OI: Tensor, bias_O: Tensor | None, report: PackingReport, *, name: str) -> Product:
    """``x -> x @ weight.T + bias`` with fp16-packed weights; raises ``TargetError`` outside fp16's range."""
    weight = weight_OI.detach().float().contiguous()
    max_abs = float(weight.abs().max())
    if not max_abs <= FP16_LARGEST:
        raise TargetError(
            f"{name}: a weight of {max_abs:.4g} does not fit fp16 (at most {FP16_LARGEST:.0f}), which precision "
            "'packed' needs: use precision 'fp32' or 'bf16'"
        )
    error = (weight.half().float() - weight).abs_()
    report.layers += 1
    report.values += weight.numel()
    report.inexact += int(torch.count_nonzero(error))
    report.max_error = max(report.max_error, float(error.max()))
    report.max_abs = max(report.max_abs, max_abs)
    return PackedLinear(weight, bias_O)


class InferenceLinear(nn.Module):
    """A linear layer that stands for an ``nn.Linear`` and only runs forward."""

    def __init__(self, product: Product, *, in_features: int, out_features: int) -> None:
        super().__init__()
        self.product = product
        self.in_features, self.out_features = in_features, out_features

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


class _Shared:
    """The product of the layers of a group, kept until the last of them has read its part."""

    __slots__ = ("input", "output", "product")

    def __init__(self, product: Product) -> None:
        self.product = product
        self.input: Tensor | None = None
        self.output: Tensor | None = None


class GroupedLinear(nn.Module):
    """One of several linear layers that read the same tensor; the first one called computes all."""

    def __init__(self, shared: _Shared, *, first: int, in_features: int, out_features: int, last: bool) -> None:
        super().__init__()
        self.shared = shared
        self.first, self.end = first, first + out_features
        self.in_features, self.out_features, self.last = in_features, out_features, last

    def forward(self, x: Tensor) -> Tensor:
        shared = self.shared
        if shared.input is not x:
            shared.output, shared.input = shared.product(x), x
        assert shared.output is not None
        part = shared.output[..., self.first : self.end]
        if self.last:
            shared.input = shared.output = None
        return part


def joined(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of one layer whose outputs are those of ``linears`` side by side."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    if all(linear.bias is None for linear in linears):
        return weight, None
    parts = [x.weight.new_zeros(x.out_features) if x.bias is None else x.bias.detach() for x in linears]
    return weight, torch.cat(parts)


def group(linears: Sequence[nn.Linear], make: Callable[[Tensor, Tensor | None], Product]) -> list[GroupedLinear]:
    """Replacements of ``linears``, which all read one tensor, in the order in which they are called."""
    shared = _Shared(make(*joined(linears)))
    replacements, first = [], 0
    for i, linear in enumerate(linears):
        size = linear.out_features
        is_last = i == len(linears) - 1
        replacements.append(
            GroupedLinear(shared, first=first, in_features=linear.in_features, out_features=size, last=is_last)
        )
        first += size
    return replacements
