"""Kills a capture with ``kill -9`` at random moments, and lets the same command go on each time.

    python tests/e2e/kill_capture.py --root build/kill-capture [--kills 50] [--seed 7] [--workers 2]

The tiny target, many small shards. One kill in four hits a worker, the others the parent. Exit status 0 only if every
store that was completed is equal to an uninterrupted one in every byte of every file, no process outlives a kill, and
no finished shard is made again.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY))

GONE_SECONDS = 10.0
LIMIT = 300.0

Finished = dict[str, tuple[int, int]]
"""Number of the file and time of change of each finished shard's marker."""


@dataclass(slots=True)
class Outcome:
    kills: int = 0
    while_writing: int = 0
    """Kills that left a shard half written."""
    stores: int = 0
    """Completed and compared."""
    failures: list[str] = field(default_factory=list)


def survive(
    root: Path, *, kills: int, seed: int, workers: int, documents: int, tell: Callable[[str], object] = print
) -> Outcome:
    """Kill ``kills`` times; stores are begun again as often as they are finished before that."""
    rng, outcome = random.Random(seed), Outcome()
    whole = _prepare(root, documents)
    work = root / "work"
    while outcome.kills < kills or not outcome.stores:
        spend = rng.uniform(0.0, 0.4) if rng.random() < 0.8 else -rng.uniform(0.0, 10.0)
        before = _finished(work)
        killed, said = _run(
            root, work, workers, spend if outcome.kills < kills else None, hit_worker=rng.random() < 0.25
        )
        after = _finished(work)
        remade = sorted(name for name, marker in before.items() if after.get(name) != marker)
        wrong = [*said, *([f"made again: {remade}"] if remade else [])]
        if killed:
            outcome.kills += 1
            torn = len(list(work.glob("scratch/store/*.partial")))
            outcome.while_writing += bool(torn)
            tell(f"kill {outcome.kills}: {killed}; shards {len(before)} -> {len(after)}, {torn} half written")
        elif not wrong:
            outcome.stores += 1
            different = _differences(whole, _last_output(work))
            wrong += [f"other bytes than uninterrupted: {different}"] if different else []
            tell(f"completed: {len(after)} shards, {len(different)} files differ from an uninterrupted capture")
            shutil.rmtree(work)
        outcome.failures += wrong
        if wrong:
            break
    return outcome


def _prepare(root: Path, documents: int) -> Path:
    """Target, documents, and the output of one uninterrupted process."""
    import torch

    from specflow.targets.target import Target
    from tests.stages.capture_helpers import greedy_documents, tokens_artifact
    from tests.stages.capture_process import run
    from tests.stages.pipeline_helpers import FakeContext, tiny_target

    torch.set_num_threads(1)
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    target = Target.load(tiny_target(root).path, precision="fp32", threads=1)
    tokens_artifact(root / "tokens", greedy_documents(target, shared=documents // 3, other=documents - documents // 3))
    context = FakeContext(root / "whole")
    run(root, context, _params(1))
    return context.output


def _params(workers: int):  # type: ignore[no-untyped-def]
    from tests.stages.capture_process import PARAMS

    return PARAMS.model_copy(update={"workers": workers, "shard_tokens": 64, "batch_tokens": 64})


def _run(root: Path, work: Path, workers: int, spend: float | None, *, hit_worker: bool) -> tuple[str, list[str]]:
    """Start a capture and kill it ``spend`` seconds after its first new shard, or that long before if negative.

    What was killed, empty if it ended first; and what went wrong.
    """
    paths = os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "kernels")))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.stages.capture_process", str(root), str(work)]
    command.append(_params(workers).model_dump_json())
    known, log = _seen(work), root / "process.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=stream, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + LIMIT
    if spend is not None and spend < 0:
        deadline = time.monotonic() - spend
    while process.poll() is None and time.monotonic() < deadline and (spend is None or _seen(work) <= known):
        time.sleep(0.002)
    if spend is not None and spend > 0:
        time.sleep(spend)
    family = _family(process)
    if process.poll() is not None or spend is None:
        code = process.wait()
        return "", [] if code == 0 else [f"ended with code {code}: {log.read_text()[-2000:]}"]
    servers = [p.pid for p in family if _parent(p) == process.pid and "forkserver" in " ".join(_cmdline(p))]
    others = [p for p in family if _parent(p) in servers]
    if hit_worker and others:
        with suppress(psutil.NoSuchProcess):
            others[0].kill()
        code, said = process.wait(), log.read_text()
        if code == 0:  # the worker had just finished
            return "", _left_over(family)
        named = f"(process {others[0].pid}) was killed (signal 9)" in said
        wrong = [] if code == 1 and named else [f"a killed worker: code {code}, {said[-2000:]}"]
        return f"worker of {len(others)}", wrong + _left_over(family)
    process.kill()
    process.wait()
    return f"parent of {len(others)} workers", _left_over(family)


def _family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        parent = psutil.Process(process.pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _parent(process: psutil.Process) -> int | None:
    try:
        return int(process.ppid())
    except psutil.Error:
        return None


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _left_over(family: list[psutil.Process]) -> list[str]:
    """Processes that are still there after some time to notice that their parent is gone."""
    _, alive = psutil.wait_procs(family, timeout=GONE_SECONDS)
    return [f"outlived the kill: {p.pid} {' '.join(_cmdline(p))[:80]}" for p in alive if p.status() != "zombie"]


def _seen(work: Path) -> set[str]:
    return {p.name for p in work.glob("scratch/store/shard-*")}


def _finished(work: Path) -> Finished:
    markers = ((p, p.stat()) for p in work.glob("scratch/store/shard-?????/COMMIT.json"))
    return {p.parent.name: (status.st_ino, status.st_mtime_ns) for p, status in markers}


def _last_output(work: Path) -> Path:
    return max(work.glob("output-*"), key=lambda p: int(p.name.removeprefix("output-")))


def _differences(one: Path, two: Path) -> list[str]:
    from tests.stages.pipeline_helpers import tree

    left, right = tree(one), tree(two)
    return sorted(name for name in {*left, *right} if left.get(name) != right.get(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--documents", type=int, default=120)
    a = parser.parse_args()
    done = survive(
        a.root,
        kills=a.kills,
        seed=a.seed,
        workers=a.workers,
        documents=a.documents,
        tell=lambda line: print(line, flush=True),
    )
    print(f"{done.kills} kills, {done.while_writing} with a shard half written; {done.stores} stores completed")
    print(
        "\n".join(done.failures) or "every store equal to an uninterrupted one, nothing made twice, nothing left over"
    )
    return 1 if done.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
