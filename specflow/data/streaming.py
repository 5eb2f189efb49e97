"""Rows of a file through worker processes: streamed in, results streamed out in the order of the rows.

Memory does not grow with the file: a chunk of lines is read when there is room for it, and a few chunks
a worker are under way. Every chunk is a pure function of its lines, so that the results are the same for any
number of workers. Workers are spawned, never forked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from specflow.data.processes import in_order

Result = TypeVar("Result")
CHUNK_BYTES = 1 << 18
CHUNKS_PER_WORKER = 3
BLOCK = 1 << 20


class Chunk(NamedTuple):
    """Whole lines of a file; the first is line ``first`` (1-based)."""

    first: int
    lines: list[bytes]


def chunks(path: Path, *, size: int | None = None) -> Iterator[Chunk]:
    """Lines in groups of at least ``size`` bytes, the last one excepted."""
    with path.open("rb") as file:
        number = 1
        while lines := file.readlines(size or CHUNK_BYTES):
            yield Chunk(number, lines)
            number += len(lines)


def count_lines(path: Path) -> int:
    """Lines of a file, a last one without line end included."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def mapped(
    path: Path, make: Callable[..., Callable[[Chunk], Result]], arguments: tuple[Any, ...], *, workers: int
) -> Iterator[Result]:
    """``make(*arguments)(chunk)`` of every chunk, in order.

    ``make`` is a function of a module. With more than one worker it is called in each of them, and what goes
    to and comes from them is pickled. An exception in a worker is raised here.
    """
    if workers == 1:
        yield from map(make(*arguments), chunks(path))
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start, initargs=(make, arguments))
    try:
        yield from in_order(pool, _work, chunks(path), ahead=CHUNKS_PER_WORKER * workers)
    finally:
        pool.shutdown(cancel_futures=True)


_make: tuple[Callable[..., Callable[[Chunk], Any]], tuple[Any, ...]] | None = None
_function: Callable[[Chunk], Any] | None = None


def _start(make: Callable[..., Callable[[Chunk], Any]], arguments: tuple[Any, ...]) -> None:
    global _make
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # The library's own switch: its threads would only be in the way.
    _make = (make, arguments)


def _work(chunk: Chunk) -> Any:
    # Made with the first chunk and not in the initializer, whose errors would only break the pool.
    global _function
    if _function is None:
        assert _make is not None
        _function = _make[0](*_make[1])
    return _function(chunk)
