"""Kills a run with ``kill -9`` once in every stage, at a random moment, and lets the same command go on each time.

    python tests/e2e/kill_each_stage.py --config configs/smoke.yaml --store build/kills [--seed 7] [--set a.b=c ...]

Heavier than a test, because every kill costs a start: run it by hand or by ``make kill-stages``. Exit status 0 only
if the last run completes, no process outlives a kill, and nothing that was finished before a kill is made again.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil

STAGES = ("target", "regenerate", "tokenize", "capture", "train", "export", "verify", "bench", "report")
GONE_SECONDS = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=20.0, help="seconds into a stage at which to kill, at most")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    a = parser.parse_args()
    command = [sys.executable, "-m", "specflow", "run", "full-pipeline", "--config", a.config, "--store", str(a.store)]
    for override in a.overrides:
        command += ["--set", override]
    rng, failures = random.Random(a.seed), list[str]()
    for stage in STAGES:
        before = _made(a.store)
        seconds = rng.uniform(0.0, a.longest)
        happened = _kill_in(stage, command, a.store, seconds)
        left = _left_over(a.store)
        after = _made(a.store)
        remade = sorted(name for name, when in before.items() if after.get(name) != when)
        failures += [f"{stage}: processes left: {left}"] if left else []
        failures += [f"{stage}: made again: {remade}"] if remade else []
        print(
            f"{stage:<11} {happened}; artifacts {len(before)} -> {len(after)}; left over {left or 'nothing'}",
            flush=True,
        )
    before = _made(a.store)
    code = subprocess.run([*command, "--json"], stdout=subprocess.DEVNULL, check=False).returncode
    kinds = {name.split("/")[0] for name in _made(a.store)}
    failures += [f"the last run ended with code {code}"] if code else []
    failures += [f"{len(kinds)} kinds of artifacts of {len(STAGES)}"] if len(kinds) != len(STAGES) else []
    failures += [f"made again: {n}" for n, when in before.items() if _made(a.store).get(n) != when]
    print("\n".join(failures) or f"completed: {len(kinds)} artifacts, each finished once, none damaged", flush=True)
    return 1 if failures else 0


def _kill_in(stage: str, command: list[str], store: Path, seconds: float) -> str:
    """Start the run, wait until ``stage`` has its log, then ``seconds`` more, and kill the parent; what happened."""
    started = time.time()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not _begun(stage, store, started):
        time.sleep(0.05)
    begun = time.time()
    while process.poll() is None and time.time() - begun < seconds and not _finished(stage, store, started):
        time.sleep(0.02)
    if process.poll() is not None:
        return f"had ended with code {process.returncode} before the kill"
    spent = time.time() - begun
    process.kill()
    process.wait()
    return f"killed {spent:.1f} s after it began" + (" (just finished)" if _finished(stage, store, started) else "")


def _begun(stage: str, store: Path, since: float) -> bool:
    logs = (p for pattern in (f"{stage}.log", f"{stage}-*.log") for p in store.glob(f".logs/*/{pattern}"))
    return any(p.stat().st_mtime >= since for p in logs)


def _finished(stage: str, store: Path, since: float) -> bool:
    kinds = {"regenerate": "conversations", "tokenize": "tokens", "capture": "features", "train": "drafter"}
    kind = {**kinds, "verify": "verification", "bench": "benchmark"}.get(stage, stage)
    return any(p.stat().st_mtime >= since for p in store.glob(f"{kind}/*/artifact.json"))


def _made(store: Path) -> dict[str, float]:
    return {f"{p.parent.parent.name}/{p.parent.name}": p.stat().st_mtime for p in store.glob("*/*/artifact.json")}


def _left_over(store: Path) -> list[str]:
    """Processes that name the store, after some time to notice that their parent is gone."""
    deadline = time.time() + GONE_SECONDS
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    while True:
        found = [
            f"{p.pid} {' '.join(p.info['cmdline'])[:80]}"
            for p in psutil.process_iter(["cmdline"])
            if p.pid not in mine and str(store) in " ".join(p.info["cmdline"] or ())
        ]
        if not found or time.time() > deadline:
            return found
        time.sleep(0.2)


if __name__ == "__main__":
    raise SystemExit(main())
