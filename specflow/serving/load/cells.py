"""The matrix that is measured: data set, way to sample, load; and in which order its cells are visited."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import NamedTuple

from specflow.config.load import LoadShape
from specflow.config.sampling import SamplingParams
from specflow.serving.load.arrivals import poisson
from specflow.serving.load.protocols import Asked
from specflow.serving.waves import WAVES_OF

ALL = "all kinds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One measurement, in words and as what is done."""

    dataset: str
    sampling_name: str
    sampling: SamplingParams
    asked: tuple[Asked, ...]
    """In the order in which they are sent; a prompt may occur more than once."""
    concurrency: int | None = None
    """Of a closed loop."""
    rate: float | None = None
    """Of an open one, requests per second; none with ``offsets``: a trace."""
    offsets: tuple[float, ...] = ()
    """Of an open one: seconds after the start at which each request is due."""

    @property
    def load(self) -> str:
        if self.concurrency is not None:
            return f"{self.concurrency} in flight"
        return "trace" if self.rate is None else f"{self.rate:g} a second"

    @property
    def name(self) -> str:
        return f"{self.dataset}, {self.sampling_name}, {self.load}"


class Visit(NamedTuple):
    """One block that is to be measured."""

    repeat: int
    mode: str
    cell: Cell


def cells_of(shape: LoadShape, prompts: Sequence[Asked], trace: Sequence[float] = ()) -> list[Cell]:
    """The whole matrix: by data set, sampling, then closed loops, rates and the trace."""
    kinds = sorted({p.kind for p in prompts})
    sets = {kind: [p for p in prompts if p.kind == kind] for kind in kinds}
    if shape.mix_kinds and len(kinds) > 1:
        sets[ALL] = _mixed(sets)
    found = []
    for dataset, own in sets.items():
        for name, sampling in shape.sampling.items():
            cell = partial(Cell, dataset=dataset, sampling_name=name, sampling=sampling)
            for concurrency in shape.concurrency:
                asked = _repeated(own, shape.requests or max(len(own), WAVES_OF * concurrency))
                found.append(cell(asked=asked, concurrency=concurrency))
            count = shape.requests or len(own)
            for rate in shape.rates:
                offsets = tuple(poisson(rate, count, seed=shape.seed))
                found.append(cell(asked=_repeated(own, count), rate=rate, offsets=offsets))
            if trace:
                found.append(cell(asked=_repeated(own, len(trace)), offsets=tuple(trace)))
    return found


def visits(cells: Sequence[Cell], modes: Sequence[str], *, repeats: int, together: bool) -> Iterator[Visit]:
    """Who begins turns with every repeat, so that a change of the machine's speed favours none.

    ``together``: the modes take turns cell by cell; otherwise a mode visits every cell before the next one starts.
    """
    for repeat in range(repeats):
        if not together:
            for mode in _turned(modes, repeat):
                yield from (Visit(repeat, mode, cell) for cell in cells)
            continue
        for number, cell in enumerate(cells):
            yield from (Visit(repeat, mode, cell) for mode in _turned(modes, repeat + number))


def _turned(modes: Sequence[str], by: int) -> Sequence[str]:
    first = by % len(modes)
    return (*modes[first:], *modes[:first])


def _repeated(prompts: Sequence[Asked], count: int) -> tuple[Asked, ...]:
    return tuple(islice(cycle(prompts), count))


def _mixed(sets: dict[str, list[Asked]]) -> list[Asked]:
    """Kinds in turn, so that the first requests are of every kind."""
    longest = max(map(len, sets.values()))
    return [own[i] for i in range(longest) for own in sets.values() if i < len(own)]
