"""Chunks of lines, in order, through any number of processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specflow.data.quarantine import DataError
from specflow.data.streaming import Chunk, chunks, count_lines, mapped


@pytest.mark.parametrize("text", ["", "\n", "a", "a\n", "a\n\nb", "a\nb\nc\n"])
def test_lines_are_counted_and_read_whole(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f"
    path.write_text(text)
    lines = text.encode().splitlines(keepends=True)
    assert count_lines(path) == len(lines)
    for size in range(1, 9):
        made = list(chunks(path, size=size))
        assert [line for chunk in made for line in chunk.lines] == lines
        assert [chunk.first for chunk in made] == [1 + sum(len(c.lines) for c in made[:n]) for n in range(len(made))]


def numbered(offset: int) -> Callable[[Chunk], tuple[int, int]]:
    return lambda chunk: (chunk.first + offset, len(chunk.lines))


def test_results_come_in_the_order_of_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("".join(f"{n}\n" * 40_000 for n in range(10)))
    made = [list(mapped(path, numbered, (10,), workers=workers)) for workers in (1, 2)]
    assert made[0] == made[1] == [(c.first + 10, len(c.lines)) for c in chunks(path)]
    assert len(made[0]) > 2
    assert sum(count for _, count in made[0]) == 400_000


def failing(line: int) -> Callable[[Chunk], int]:
    def work(chunk: Chunk) -> int:
        if chunk.first <= line < chunk.first + len(chunk.lines):
            raise DataError(f"line {line}")
        return chunk.first

    return work


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_worker_raises_comes_after_the_results_before_it(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "f"
    path.write_text("0123456789\n" * 100_000)
    first = [chunk.first for chunk in chunks(path)]
    results = mapped(path, failing, (first[2],), workers=workers)
    assert [next(results), next(results)] == first[:2]
    with pytest.raises(DataError, match=f"line {first[2]}"):
        next(results)
