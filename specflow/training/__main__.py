"""``torchrun --nnodes 2 --nproc-per-node 8 -m specflow.training JOB``: the ranks of a job on several machines.

All machines see the same directories. The train stage wrote the job; run it again afterwards to make the artifact.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from specflow.training.job import Job
from specflow.training.worker import train_worker


class Lines:
    """Messages as lines; of progress, every tenth part."""

    def __init__(self) -> None:
        self._done, self._total, self._figures = 0.0, 1.0, ""

    def log(self, message: str) -> None:
        print(message, flush=True)

    @contextmanager
    def progress(self, description: str, *, total: float, unit: str = "rows") -> Iterator[Lines]:
        self._done, self._total = 0.0, max(total, 1.0)
        yield self

    def advance(self, amount: float = 1) -> None:
        before = int(10 * self._done / self._total)
        self._done += amount
        if int(10 * self._done / self._total) > before:
            print(f"{self._done:g}/{self._total:g} {self._figures}", flush=True)

    def describe(self, text: str) -> None:
        self._figures = text

    def figures(self, values: Mapping[str, float]) -> None:
        self._figures = ", ".join(f"{name} {value:.3g}" for name, value in values.items())


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: torchrun --nproc-per-node N -m specflow.training JOB (job.json of the train stage)")
        return 2
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        train_worker(Job.read(Path(arguments[0])), Lines())
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
