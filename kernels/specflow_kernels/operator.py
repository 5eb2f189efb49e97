"""How an operator presents itself to the commands: example inputs, both implementations, the choice, the cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from specflow_kernels.choice import Choice, name_of
from specflow_kernels.cost import Cost
from specflow_kernels.peers import Peer

Inputs = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Inputs of a size that a shipped configuration or a usual deployment has."""

    name: str
    make: Callable[[torch.device], dict[str, Any]]
    """Keyword arguments of the operator, on this device; ``meta`` works too."""

    @property
    def narrow(self) -> bool:
        """Whether it has bfloat16 tensors."""
        return any(_is_bfloat16(value) for value in self.make(torch.device("meta")).values())

    def in_dtype(self, dtype: torch.dtype) -> Case:
        """The same with its bfloat16 tensors in ``dtype``."""

        def make(device: torch.device) -> dict[str, Any]:
            return {name: t.to(dtype) if _is_bfloat16(t) else t for name, t in self.make(device).items()}

        return Case(name=f"{self.name}, {name_of(dtype)}", make=make)


def _is_bfloat16(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bfloat16


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    name: str
    summary: str
    public: Callable[..., Any]
    kernel: Callable[..., Any]
    reference: Callable[..., Any]
    explain: Callable[..., Choice]
    cost: Callable[..., Cost]
    """Of the forward pass."""
    cases: tuple[Case, ...]
    differentiable: tuple[str, ...] = ()
    """Inputs that get a gradient."""
    backward_cost: Callable[..., Cost] | None = None
    peers: Mapping[str, Peer] = field(default_factory=dict)
    """Public kernels by name."""
    in_fp32: bool = True
    """Whether the kernel takes in fp32 what its cases have in bfloat16."""

    @property
    def variants(self) -> Iterator[Case]:
        """Its cases, and those with bfloat16 tensors in fp32 too; code for fp16 is that for bfloat16."""
        for case in self.cases:
            yield case
            if self.in_fp32 and case.narrow:
                yield case.in_dtype(torch.float32)


class _IndicesInMemory(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in (torch.arange, torch.full):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


def without_memory(case: Case) -> dict[str, Any]:
    """The case's inputs for a cost: large tensors have no memory, while what a cost depends on has its values."""
    with _IndicesInMemory():
        return case.make(torch.device("meta"))


def run(function: Callable[..., Any], inputs: Inputs, *, differentiable: tuple[str, ...]) -> Any:
    """Call ``function``; where inputs are ``differentiable``, run the backward pass of the sum of its outputs too."""
    if not differentiable:
        return function(**inputs)
    leaves = {name: inputs[name].detach().requires_grad_() for name in differentiable if inputs[name] is not None}
    out = function(**{**inputs, **leaves})
    floats = [t for t in flatten(out) if t.requires_grad]
    gradients = torch.autograd.grad([t.float().sum() for t in floats], list(leaves.values()))
    return out, gradients


def flatten(out: Any) -> list[Tensor]:
    """Tensors of an operator's result."""
    if isinstance(out, Tensor):
        return [out]
    return [] if out is None else [t for part in out for t in flatten(part)]
