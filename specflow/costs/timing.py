"""Timing passes of many shapes: warm, several visits to each shape in a shuffled order, so that a drift hits all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Protocol

import numpy as np

from specflow.costs.cells import Cell

Split = tuple[int, ...]


class Passes(Protocol):
    """What is timed: one target pass, the head included, of so many rows per request."""

    def prepare(self, split: Split) -> Callable[[], object]:
        """A pass of this shape that can be run again and again; each run leaves the requests as they were."""
        ...


def time_passes(
    passes: Passes,
    splits: Sequence[Split],
    *,
    visits: int,
    samples: int,
    seed: int,
    kept: Path | None = None,
    on_visit: Callable[[int], None] = lambda count: None,
    clock: Callable[[], float] = perf_counter,
) -> list[Cell]:
    """``visits * samples`` timings of every split, each visit after one run that is not timed.

    Finished visits are appended to ``kept``, so that a killed run continues. The order of a visit is a function of
    the seed.
    """
    unique = list(dict.fromkeys(splits))
    done = _finished(kept)
    on_visit(sum((visit, split) in done for visit in range(visits) for split in unique))
    for visit in range(visits):
        for place in np.random.default_rng((seed, visit)).permutation(len(unique)):
            split = unique[int(place)]
            if (visit, split) in done:
                continue
            done[visit, split] = tuple(_timed(passes.prepare(split), samples, clock))
            if kept is not None:
                line = {"visit": visit, "split": split, "seconds": done[visit, split]}
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            on_visit(1)
    return [Cell(split=s, seconds=tuple(t for visit in range(visits) for t in done[visit, s])) for s in unique]


def _timed(run: Callable[[], object], samples: int, clock: Callable[[], float]) -> Iterable[float]:
    run()
    for _ in range(samples):
        begin = clock()
        run()
        yield clock() - begin


def _finished(kept: Path | None) -> dict[tuple[int, Split], tuple[float, ...]]:
    """Whole visits in the file; a line torn by a kill is not one."""
    found: dict[tuple[int, Split], tuple[float, ...]] = {}
    if kept is None or not kept.exists():
        return found
    text = kept.read_text(encoding="utf-8")
    for line in text[: text.rfind("\n") + 1].splitlines():
        row = json.loads(line)
        found[int(row["visit"]), tuple(row["split"])] = tuple(row["seconds"])
    kept.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")
    return found
