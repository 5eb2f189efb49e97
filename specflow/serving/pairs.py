"""Plain and speculative decoding of the same prompts in turn, kept pair by pair."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specflow.decoding.records import Generation, Round
from specflow.reporting.measure import Pair
from specflow.serving.lines import read_whole_lines
from specflow.serving.requests import Request

Decode = Callable[[Sequence[int]], Generation]


def measure_pairs(
    requests: Sequence[Request],
    *,
    plain: Decode,
    speculative: Decode,
    repeats: int,
    kept: Path,
    on_pair: Callable[[], None] = lambda: None,
) -> list[Pair]:
    """Decode each prompt ``repeats`` times both ways; the order is swapped with every prompt and repeat.

    Finished prompts are appended to ``kept``, so a killed run continues. Each pair holds its own baseline,
    therefore pairs of two runs may be added up.
    """
    done = read_pairs(kept)
    found: list[Pair] = []
    for number, request in enumerate(requests):
        pair = done.get(request.id)
        if pair is None:
            sides: dict[str, list[Generation]] = {"plain": [], "speculative": []}
            for repeat in range(repeats):
                modes = [("plain", plain), ("speculative", speculative)]
                for side, decode in modes if (number + repeat) % 2 == 0 else modes[::-1]:
                    sides[side].append(decode(request.prompt))
            pair = Pair(id=request.id, kind=request.kind, plain=sides["plain"], speculative=sides["speculative"])
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(pair), separators=(",", ":")) + "\n")
        found.append(pair)
        on_pair()
    return found


def read_pairs(path: Path) -> dict[str, Pair]:
    """Finished pairs by prompt id. A line torn by a kill is cut off the file."""
    return {pair.id: pair for pair in read_whole_lines(path, _pair)}


def _pair(row: Any) -> Pair:
    return Pair(
        id=row["id"],
        kind=row["kind"],
        plain=[_generation(g) for g in row["plain"]],
        speculative=[_generation(g) for g in row["speculative"]],
    )


def _generation(row: dict[str, object]) -> Generation:
    rounds = row.pop("rounds")
    assert isinstance(rounds, list)
    return Generation(**row, rounds=[Round(**r) for r in rounds])  # type: ignore[arg-type]
