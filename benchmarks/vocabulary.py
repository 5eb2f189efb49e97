"""The draft vocabulary of a large target: time to build, check, write and read it, and to count what it is made from.

    python benchmarks/vocabulary.py --target-size 151936 --size 32000 --tokens 20000000

Prints seconds; the limit for building is one second.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specflow.data.vocabulary import build_map, count_supervised, read_map, write_map

LIMIT_SECONDS = 1.0


@dataclass
class Document:
    ids: Any
    supervised: Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target-size", type=int, default=151_936)
    parser.add_argument("--size", type=int, default=32_000)
    parser.add_argument("--tokens", type=int, default=20_000_000)
    options = parser.parse_args()
    random = np.random.default_rng(0)
    ids = np.minimum(random.zipf(1.2, options.tokens), options.target_size) - 1
    parts = np.array_split(ids, max(1, options.tokens // 1000))
    documents = [Document(part, np.ones(len(part), dtype=bool)) for part in parts]
    always = range(options.target_size - 300, options.target_size)
    counts = timed(
        f"count {options.tokens:,} tokens of {len(documents):,} documents",
        lambda: count_supervised(documents, vocabulary_size=options.target_size),
    )
    name = f"build and check {options.target_size:,} x {options.size:,}"
    begin = time.perf_counter()
    mapping = timed(name, lambda: build_map(counts, size=options.size, always=always))
    seconds = time.perf_counter() - begin
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "map.safetensors"
        timed("write", lambda: write_map(path, mapping))
        timed("read and check", lambda: read_map(path))
    print(f"building takes {seconds / LIMIT_SECONDS:.3f} of the limit of {LIMIT_SECONDS:g} s")


def timed(name: str, work: Callable[[], Any]) -> Any:
    begin = time.perf_counter()
    made = work()
    print(f"{name}: {time.perf_counter() - begin:.3f} s")
    return made


if __name__ == "__main__":
    main()
