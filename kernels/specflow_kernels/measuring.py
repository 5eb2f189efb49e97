"""Times of every operator on a CUDA device: kernel, public kernels, reference, compiled reference, and the limits.

Legend of a row: seconds are medians; ``share`` is the least time that the measured limits allow over the kernel's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from specflow_kernels.cost import Cost
from specflow_kernels.operator import Case, Inputs, Operator, run, without_memory
from specflow_kernels.peers import Peer

WARM_UP_MS, MEASURE_MS = 50, 200
COPIED = 1 << 28
"""Elements copied to measure the memory's limit: 1 GB in fp32, beyond any cache."""
SIDE = 8192
"""Side of the square product that measures the limit of operations."""
BUDGET = 540.0
"""Seconds for everything, so that ten minutes of a device are enough."""
ROUNDS = ("triton", "public", "reference", "torch.compile")
"""Measured for all rows in this order, so that a budget cuts off what says least about a kernel."""

Prepare = Callable[[dict[str, Any]], Callable[..., Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    bytes_per_second: float
    operations_per_second: float
    """Of bf16 products."""


@dataclass(slots=True, kw_only=True)
class Row:
    operator: str
    case: str
    direction: str
    """``forward`` or ``forward and backward``."""
    bytes: int
    operations: int
    seconds: dict[str, float | None] = field(default_factory=dict)
    """By implementation; none where there is no time, for the reason in ``notes``."""
    notes: dict[str, str] = field(default_factory=dict)
    share: float | None = None


@dataclass(slots=True, kw_only=True)
class Job:
    """A row and what it is of."""

    operator: Operator
    case: Case
    leaves: tuple[str, ...]
    row: Row


def measure(operators: Iterable[Operator], *, budget: float = BUDGET) -> dict[str, Any]:
    """Device, versions, limits and rows, as one document.

    ``budget``: seconds after which nothing more is begun. Raises ``RuntimeError`` without a CUDA device.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device is here: nothing was measured")
    import triton

    begin, operators = time.monotonic(), list(operators)
    device = torch.device("cuda")
    limits = measure_limits(device)
    jobs = list(jobs_of(operators))
    measure_jobs(jobs, limits, device, budget=budget, spent=lambda: time.monotonic() - begin)
    return {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "limits": asdict(limits),
        "budget": budget,
        "seconds": time.monotonic() - begin,
        "peers": peers_of(operators),
        "rows": [asdict(job.row) for job in jobs],
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


def peers_of(operators: Iterable[Operator]) -> dict[str, dict[str, str | None]]:
    """Package, its version here (none: not installed) and what it computes, of every public kernel by name."""
    return {
        name: {"package": peer.package, "version": peer.version, "computes": peer.computes}
        for operator in operators
        for name, peer in operator.peers.items()
    }


def jobs_of(operators: Iterable[Operator]) -> Iterator[Job]:
    """A row for every case, and one with the backward pass where there is one; nothing is measured yet."""
    for operator in operators:
        for case in operator.cases:
            yield _job(operator, case)
            if operator.differentiable:
                yield _job(operator, case, leaves=operator.differentiable)


def measure_jobs(
    jobs: Sequence[Job], limits: Limits, device: torch.device, *, budget: float, spent: Callable[[], float]
) -> None:
    """Fill the rows, one of ``ROUNDS`` of all after the other; ``spent``: seconds since the begin."""
    for name in ROUNDS:
        for job in jobs:
            for implementation, prepare in _implementations(job.operator, name):
                late = f"not measured: the budget of {budget:.0f} s was spent" if spent() >= budget else None
                _measure(job, implementation, prepare, device, reason_against=late)
    for job in jobs:
        taken, cost = job.row.seconds["triton"], Cost(bytes=job.row.bytes, operations=job.row.operations)
        if taken is not None:
            job.row.share = cost.share(taken, **asdict(limits))


def _job(operator: Operator, case: Case, *, leaves: tuple[str, ...] = ()) -> Job:
    inputs = without_memory(case)
    cost = operator.cost(**inputs)
    if leaves and operator.backward_cost is not None:
        cost = cost + operator.backward_cost(**inputs)
    row = Row(
        operator=operator.name,
        case=case.name,
        direction="forward and backward" if leaves else "forward",
        bytes=cost.bytes,
        operations=cost.operations,
    )
    return Job(operator=operator, case=case, leaves=leaves, row=row)


def _implementations(operator: Operator, name: str) -> Iterator[tuple[str, Prepare]]:
    """What a round measures of the operator, each to be made ready for inputs."""
    if name == "triton":
        yield name, lambda _: operator.kernel
    elif name == "reference":
        yield name, lambda _: operator.reference
    elif name == "torch.compile":
        yield name, lambda _: torch.compile(operator.reference)
    else:
        for peer_name, peer in operator.peers.items():
            yield peer_name, _if_installed(peer)


def _if_installed(peer: Peer) -> Prepare:
    def prepare(inputs: dict[str, Any]) -> Callable[..., Any]:
        if peer.absence:
            raise ImportError(peer.absence)
        return peer.prepare(inputs)

    return prepare


def _measure(job: Job, name: str, prepare: Prepare, device: torch.device, *, reason_against: str | None) -> None:
    row = job.row
    if reason_against:
        row.seconds[name], row.notes[name] = None, reason_against
        return
    torch.manual_seed(0)
    torch.compiler.reset()  # a reference compiled for other shapes would be compiled for any shape
    try:
        inputs = job.case.make(device)
        function = prepare(inputs)
        row.seconds[name] = _seconds(lambda: run(function, _fresh(inputs), differentiable=job.leaves))
    except Exception as error:  # whatever one implementation cannot do costs no other its time
        row.seconds[name], row.notes[name] = None, (str(error) or repr(error)).splitlines()[0][:200]
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _fresh(inputs: Inputs) -> Inputs:
    """Inputs without graphs of the run before."""
    return {name: t.detach() if isinstance(t, Tensor) else t for name, t in inputs.items()}


def _seconds(function: Callable[[], Any]) -> float:
    """Median, with the caches emptied between runs."""
    from triton.testing import do_bench

    return float(do_bench(function, warmup=WARM_UP_MS, rep=MEASURE_MS, return_mode="median")) / 1e3
