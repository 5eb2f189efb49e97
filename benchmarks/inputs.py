"""Reading prompts from a large file: rows per second by workers, and peak memory by size.

    python benchmarks/inputs.py [--megabytes 1024] [--near 0.8] [--scratch DIRECTORY]

A file of JSON lines is generated: conversations of about a kilobyte, 2 % of them equal to another one, 1 % unusable.
It is read with one worker and with two, and an eighth of it with one. Each figure is of a fresh process. Goals: the
same rows whatever the number of workers, half the time with two workers on two idle cores, and the peak memory of a
process nearly the same for the whole file and an eighth of it. The generated file stays in DIRECTORY for the next run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

from specflow.config.inputs import InputParams, PromptSource
from specflow.data.inputs.prepare import prepare
from specflow.data.inputs.rows import to_json

MEGABYTE = 1 << 20


def main() -> None:
    options = _options()
    if options.measure:
        print(json.dumps(_measured(options)))
        return
    scratch = Path(options.scratch or tempfile.mkdtemp(prefix="specflow-inputs-"))
    whole = _generated(scratch, options.megabytes)
    part = _generated(scratch, max(1, options.megabytes // 8))
    print(f"{len(os.sched_getaffinity(0))} cores for this process; near duplicates: {options.near or 'off'}")
    results = [_run(path, workers, options, scratch) for path, workers in ((part, 1), (whole, 1), (whole, 2))]
    print("megabytes workers       rows  seconds   rows/s   MB/s  peak memory in MB: process, largest worker")
    for result in results:
        print(
            f"{result['megabytes']:9.0f} {result['workers']:7d} {result['rows']:10d} {result['seconds']:8.1f} "
            f"{result['rows'] / result['seconds']:8.0f} {result['megabytes'] / result['seconds']:6.1f}  "
            f"{result['peak']:8.0f} {result['peak_worker']:8.0f}"
        )
    eighth, one, two = results
    print(f"time with one worker / with two: {one['seconds'] / two['seconds']:.2f}")
    print(f"peak memory, whole file / an eighth: {one['peak'] / eighth['peak']:.2f}")
    print(f"same rows with one and two workers: {one['sha256'] == two['sha256']}")
    print(f"set aside: {one['set_aside']}")


def _run(path: Path, workers: int, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--measure", str(path), "--workers", str(workers), "--scratch", str(scratch)]
    if options.near:
        command += ["--near", str(options.near)]
    made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(made.stdout)
    return result


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    path = Path(options.measure)
    params = InputParams(workers=options.workers, near_duplicates=options.near)
    begin = time.perf_counter()
    made = prepare([PromptSource(path=path, kind="benchmark")], [], params, folder=Path(options.scratch) / "inputs")
    seconds = time.perf_counter() - begin
    digest = hashlib.sha256()
    for prompt in made.rows():
        digest.update(to_json([prompt.id, prompt.row, prompt.messages]))
    for row in made.quarantined():
        digest.update(str(row).encode())
    return {
        "megabytes": path.stat().st_size / MEGABYTE,
        "workers": options.workers,
        "rows": made.total,
        "seconds": seconds,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "peak_worker": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        "sha256": digest.hexdigest(),
        "set_aside": made.summary()["set_aside"],
    }


def _generated(folder: Path, megabytes: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"prompts-{megabytes}.jsonl"
    if path.exists() and path.stat().st_size >= megabytes * MEGABYTE:
        return path
    random_ = random.Random(0)
    words = ["".join(random_.choices("abcdefghijklmnopqrstuvwxyz", k=random_.randint(2, 9))) for _ in range(20000)]
    sentences = [" ".join(random_.choices(words, k=random_.randint(6, 16))) + "." for _ in range(50000)]
    size, line = 0, b""
    with path.open("wb") as file:
        while size < megabytes * MEGABYTE:
            if not line or random_.random() >= 0.02:
                line = orjson.dumps(_row(random_, sentences)) + b"\n"
            size += file.write(line)
    return path


def _row(random_: random.Random, sentences: list[str]) -> Any:
    if random_.random() < 0.01:
        return {"messages": []}
    turns = [{"role": "system", "content": "You are a helpful assistant."}]
    turns += (
        {"role": role, "content": " ".join(random_.choices(sentences, k=random_.randint(1, 5)))}
        for role in ("user", "assistant") * random_.randint(1, 3)
    )
    return {"messages": turns}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the generated file")
    parser.add_argument("--near", type=float, help="also look for nearly equal rows, at this similarity")
    parser.add_argument("--scratch", help="directory for the file and for the rows that were read")
    parser.add_argument("--workers", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
