"""Every cell of the matrix on every server, in turn, kept block by block so that a killed run goes on."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from pathlib import Path
from typing import Protocol

from specflow.serving.lines import read_whole_lines
from specflow.serving.load.cells import Visit
from specflow.serving.load.generator import Conditions, Endpoint, run_block, warm_up
from specflow.serving.load.samples import Block
from specflow.targets.retrying import ServerError

Place = tuple[str, str, int]
EXAMPLES = 3


class Servers(Protocol):
    """Gives the server of a mode; inside the block it is up, and idle but for us."""

    def endpoint(self, mode: str, *, repeat: int) -> AbstractContextManager[Endpoint]: ...


def measure(
    visits: Sequence[Visit],
    servers: Servers,
    conditions: Conditions,
    *,
    kept: Path,
    max_failures: float,
    judge: Callable[[Block], str | None] = lambda block: None,
    on_block: Callable[[Block], None] = lambda block: None,
) -> list[Block]:
    """The blocks of ``visits``, in that order; those in ``kept`` are not measured again.

    ``judge`` says why a block is no measurement, none if it is one. Raises :class:`ServerError` for that, for too many
    failures, and where a server is gone; the blocks before are kept.
    """
    done: dict[Place, Block] = {_place(b): b for b in read_whole_lines(kept, Block.from_json)}
    warmed: list[Endpoint] = []
    for (repeat, mode), group in groupby(visits, key=lambda v: (v.repeat, v.mode)):
        left = [v for v in group if (mode, v.cell.name, repeat) not in done]
        if not left:
            continue
        with servers.endpoint(mode, repeat=repeat) as endpoint:
            if not any(endpoint is known for known in warmed):  # by identity: another server may have the same port
                asyncio.run(warm_up(endpoint, left[0].cell, conditions))
                warmed.append(endpoint)
            for visit in left:
                block = asyncio.run(run_block(endpoint, visit.cell, conditions, mode=mode, repeat=repeat))
                if problem := _too_many(block, max_failures) or judge(block):
                    raise ServerError(f"{mode}, {visit.cell.name}: {problem}", gone=False)
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(block.as_json(), separators=(",", ":")) + "\n")
                done[_place(block)] = block
                on_block(block)
    return [done[v.mode, v.cell.name, v.repeat] for v in visits]


def kept_blocks(kept: Path, visits: Sequence[Visit]) -> list[Block]:
    """What a run that ended early has measured of ``visits``."""
    done = {_place(b): b for b in read_whole_lines(kept, Block.from_json)}
    return [done[place] for v in visits if (place := (v.mode, v.cell.name, v.repeat)) in done]


def _place(block: Block) -> Place:
    return block.mode, block.cell, block.repeat


def _too_many(block: Block, largest: float) -> str | None:
    if not block.samples or block.failed_share > largest:
        reasons = Counter(f.reason for f in block.failures)
        listed = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
        shown = "".join(f"\n  request {f.number + 1}: {f.reason}: {f.detail}" for f in block.failures[:EXAMPLES])
        count = len(block.failures) + len(block.samples)
        return f"{len(block.failures)} of {count} requests failed, {largest:.1%} may: {listed}{shown}"
    return None
