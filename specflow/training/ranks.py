"""The processes that train together, as the loop sees them: who am I, sums over all, one decides for all.

Whoever starts the processes (this program, torchrun, Ray) has set up ``torch.distributed``; here is only its use.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @classmethod
    def here(cls) -> Ranks:
        """The ranks of the process group of this process; one rank if there is none."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls(device=_device(0))
        return cls(rank=dist.get_rank(), size=dist.get_world_size(), device=_device(_local_rank()))

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sums(self, values: Sequence[float]) -> list[float]:
        """Every value summed over all ranks, in float64; the same bits on every rank."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        result: list[float] = total.tolist()
        return result

    def most(self, value: int) -> int:
        """The largest of the ranks' values."""
        if self.size == 1:
            return value
        largest = torch.tensor([value], device=self.device)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest)

    def from_first(self, value: Any) -> Any:
        """The JSON value that rank 0 passes, on every rank."""
        if self.size == 1:
            return value
        data = json.dumps(value).encode() if self.first else b""
        size = torch.tensor([len(data)], device=self.device)
        dist.broadcast(size, src=0)
        text = torch.frombuffer(bytearray(data or bytes(int(size))), dtype=torch.uint8).to(self.device)
        dist.broadcast(text, src=0)
        return json.loads(bytes(text.cpu().numpy()))

    def agree(self, what: str, value: float) -> None:
        """Raises ``RuntimeError`` on every rank unless all have the same value."""
        total, squares = self.sums([value, value * value])
        if abs(total * total - self.size * squares) > 1e-6 * max(1.0, squares):
            raise RuntimeError(
                f"expected {what} to be the same on all {self.size} ranks, found {value:g} on rank {self.rank} and a "
                f"mean of {total / self.size:g}; do all machines see the same directory?"
            )

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


def _local_rank() -> int:
    """torchrun and Ray say which of the machine's devices a process should use; one machine alone: its rank."""
    return int(os.environ.get("LOCAL_RANK", dist.get_rank()))


def _device(number: int) -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", number % torch.cuda.device_count())
    return CPU
