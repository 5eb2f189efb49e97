"""Waves of prompts decoded in several modes in turn, so that a change of the machine's speed meets all modes alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from specflow.decoding.records import Generation, Round
from specflow.serving.lines import read_whole_lines
from specflow.serving.requests import Request

DecodeMany = Callable[[Sequence[Sequence[int]], int], list[Generation]]
"""``(prompts, requests in flight)``; results in prompt order."""
WAVES_OF = 3
"""Prompts of a wave, in requests in flight: long enough that filling and draining are a small part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """One mode's pass over one wave of prompts."""

    concurrency: int
    number: int
    repeat: int
    mode: str
    seconds: float
    """By the clock, prefill included."""
    generations: list[Generation]

    @property
    def tokens(self) -> int:
        return sum(len(g.tokens) for g in self.generations)


def waves_of(requests: Sequence[Request], concurrency: int) -> list[Sequence[Request]]:
    """Single prompts where one is in flight; else groups of about three times as many as are in flight."""
    if concurrency == 1:
        return [[request] for request in requests]
    count = max(1, round(len(requests) / (WAVES_OF * concurrency)))
    # Every wave takes each kind in its share: prompts come sorted by kind.
    return [requests[start::count] for start in range(count)]


def measure_waves(
    requests: Sequence[Request],
    modes: Mapping[str, DecodeMany],
    *,
    concurrency: int,
    repeats: int,
    kept: Path,
    on_wave: Callable[[], object],
) -> list[Wave]:
    """Every wave in every mode, the order turning by one from wave to wave.

    Finished waves are appended to ``kept``, so that a killed run goes on.
    """
    done = {_place(wave): wave for wave in read_whole_lines(kept, _wave)}
    found: list[Wave] = []
    for number, repeat, mode, wave in _order(waves_of(requests, concurrency), list(modes), repeats):
        place = (concurrency, number, repeat, mode)
        if place not in done:
            begin = perf_counter()
            generations = modes[mode]([request.prompt for request in wave], concurrency)
            seconds = perf_counter() - begin
            done[place] = Wave(
                concurrency=concurrency, number=number, repeat=repeat, mode=mode, seconds=seconds,
                generations=generations,
            )  # fmt: skip
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(done[place]), separators=(",", ":")) + "\n")
        found.append(done[place])
        on_wave()
    return found


def _order(
    waves: Sequence[Sequence[Request]], modes: Sequence[str], repeats: int
) -> Iterator[tuple[int, int, str, Sequence[Request]]]:
    for number, wave in enumerate(waves):
        for repeat in range(repeats):
            first = (number + repeat) % len(modes)
            for mode in (*modes[first:], *modes[:first]):
                yield number, repeat, mode, wave


def _place(wave: Wave) -> tuple[int, int, int, str]:
    return wave.concurrency, wave.number, wave.repeat, wave.mode


def _wave(row: Any) -> Wave:
    generations = [Generation(**{**g, "rounds": [Round(**r) for r in g["rounds"]]}) for g in row["generations"]]
    return Wave(**{**row, "generations": generations})
