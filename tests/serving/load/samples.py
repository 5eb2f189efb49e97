"""Samples and blocks by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specflow.config.sampling import SamplingParams
from specflow.serving.load.cells import Cell
from specflow.serving.load.protocols import Asked
from specflow.serving.load.samples import Arrival, Block, Counters, Sample


def sample(
    id: str, arrivals: Sequence[tuple[float, int | None]], *, sent: float = 0.0, end: float | None = None, **counts: Any
) -> Sample:
    last = arrivals[-1]
    counters = {"tokens": last[1] or 0, "prompt_tokens": 10, "cached_tokens": 0, **counts}
    return Sample(
        number=0, id=id, kind="k", due=sent, sent=sent, arrivals=tuple(Arrival(*a) for a in arrivals),
        finished=last[0] if end is None else end, finish="stop", counters=Counters(**counters),
    )  # fmt: skip


def block(*samples: Sample, mode: str = "drafter", repeat: int = 0, cell: str = "k", **named: Any) -> Block:
    seconds = named.pop("seconds", max((s.finished for s in samples), default=0.0))
    return Block(mode=mode, cell=cell, repeat=repeat, seconds=seconds, samples=samples, **named)


def closed(concurrency: int | None = 1, *, dataset: str = "k", ids: Sequence[str] = ("a",)) -> Cell:
    asked = tuple(Asked(id=name, kind=dataset, ids=(1,)) for name in ids)
    return Cell(
        dataset=dataset, sampling_name="greedy", sampling=SamplingParams(), asked=asked, concurrency=concurrency
    )
