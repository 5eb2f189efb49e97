"""What computes the features of a batch, and the one place where it is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from specflow.config.capture import CaptureParams
from specflow.features.contract import FeatureContract

if TYPE_CHECKING:
    from specflow.features.capture import Captured
    from specflow.features.plan import Batch
    from specflow.targets.sglang.server import FeatureServer
    from specflow.targets.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureJob:
    """What every process that captures shards of a store is told once. Decisions are made: nothing is ``auto``."""

    target: Path
    root: Path
    """Where the store is written."""
    contract: FeatureContract
    params: CaptureParams
    precision: str
    threads: int
    device: str
    server: FeatureServer | None = None
    """What computes the layers, where it is not the target in the process."""


class CaptureEngine(Protocol):
    def run(self, batch: Batch) -> list[Captured]:
        """Features of the batch's documents, in its order."""
        ...

    @property
    def retried(self) -> int:
        """Requests that failed and were repeated."""
        ...

    def close(self) -> None: ...


def make_engine(job: CaptureJob, target: Target, documents: Mapping[int, Sequence[int]]) -> CaptureEngine:
    """An engine over token ids by document number; ``documents`` always holds those of the shard at hand."""
    from specflow.features.capture import Capturer
    from specflow.features.served import ServedCapturer

    if job.server is not None:
        return ServedCapturer(job.server, target, job.params.layer_ids, documents)
    return Capturer(target, job.params.layer_ids, documents)
