"""Times of every operator on a CUDA device: kernel, reference, compiled reference, public kernels, and the limits.

Legend of a row: seconds are medians; ``share`` is the least time that the measured limits allow over the kernel's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from specflow_kernels.operator import Case, Inputs, Operator, run

WARM_UP_MS, MEASURE_MS = 50, 200
COPIED = 1 << 28
"""Elements copied to measure the memory's limit: 1 GB in fp32, beyond any cache."""
SIDE = 8192
"""Side of the square product that measures the limit of operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    bytes_per_second: float
    operations_per_second: float
    """Of bf16 products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    operator: str
    case: str
    direction: str
    """``forward`` or ``forward and backward``."""
    bytes: int
    operations: int
    seconds: dict[str, float | None] = field(default_factory=dict)
    """By implementation; none where it failed, for the reason in ``notes``."""
    notes: dict[str, str] = field(default_factory=dict)
    share: float | None = None


def measure(operators: Iterable[Operator]) -> dict[str, Any]:
    """Device, versions, limits and rows, as one document. Raises ``RuntimeError`` without a CUDA device."""
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device is here: nothing was measured")
    import triton

    device = torch.device("cuda")
    limits = measure_limits(device)
    rows = [
        _row(operator, case, backward, limits, device)
        for operator in operators
        for case in operator.cases
        for backward in ((False, True) if operator.differentiable else (False,))
    ]
    return {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "limits": asdict(limits),
        "rows": [asdict(row) for row in rows],
    }


def measure_limits(device: torch.device) -> Limits:
    """What a copy and a square product of this device reach."""
    source = torch.zeros(COPIED, device=device)
    into = torch.empty_like(source)
    copied = _seconds(lambda: into.copy_(source))
    left = torch.randn(SIDE, SIDE, device=device, dtype=torch.bfloat16)
    multiplied = _seconds(lambda: left @ left)
    return Limits(
        bytes_per_second=2 * source.numel() * source.element_size() / copied,
        operations_per_second=2 * SIDE**3 / multiplied,
    )


def _row(operator: Operator, case: Case, backward: bool, limits: Limits, device: torch.device) -> Row:
    torch.manual_seed(0)
    inputs = case.make(device)
    cost = operator.cost(**inputs)
    if backward and operator.backward_cost is not None:
        cost = cost + operator.backward_cost(**inputs)
    row = Row(
        operator=operator.name,
        case=case.name,
        direction="forward and backward" if backward else "forward",
        bytes=cost.bytes,
        operations=cost.operations,
    )
    leaves = operator.differentiable if backward else ()
    for name, prepare in implementations(operator).items():
        try:
            function = prepare(inputs)
            row.seconds[name] = _seconds(lambda f=function: run(f, _fresh(inputs), differentiable=leaves))  # type: ignore[misc]
        except (RuntimeError, ImportError, ValueError) as error:  # out of memory, not compilable, not installed
            row.seconds[name], row.notes[name] = None, (str(error) or repr(error)).splitlines()[0][:200]
        torch.cuda.empty_cache()
    taken = row.seconds["triton"]
    if taken is None:
        return row
    share = cost.share(
        taken, bytes_per_second=limits.bytes_per_second, operations_per_second=limits.operations_per_second
    )
    return Row(**{**asdict(row), "share": share})


def implementations(operator: Operator) -> dict[str, Callable[[dict[str, Any]], Callable[..., Any]]]:
    """Everything that computes the operator, by name, each to be made ready for inputs."""
    return {
        "triton": lambda _: operator.kernel,
        "reference": lambda _: operator.reference,
        "torch.compile": lambda _: torch.compile(operator.reference),
        **operator.peers,
    }


def _fresh(inputs: Inputs) -> Inputs:
    """Inputs without graphs of the run before."""
    return {name: t.detach() if isinstance(t, Tensor) else t for name, t in inputs.items()}


def _seconds(function: Callable[[], Any]) -> float:
    """Median, with the caches emptied between runs."""
    from triton.testing import do_bench

    return float(do_bench(function, warmup=WARM_UP_MS, rep=MEASURE_MS, return_mode="median")) / 1e3
