"""Training against the newest ``specforge`` of the registry: tokens per second and peak memory, side by side.

    python benchmarks/train_peer.py --setup DIRECTORY         (makes the peer's environment there, then measures)
    python benchmarks/train_peer.py --peer-python DIRECTORY/bin/python [--length 1024] [--anchors 256] ...

Both sides train DFlash (DSpark where a shape has a rank) on the same documents with the same shapes, in fp32 with the
same torch release and number of threads, features in memory, each in a fresh process of its own; their steps alternate.
A step is: draw the anchors, loss, gradients, clipping, AdamW. Both draw the same number of anchors from the same
positions, so a step of either trains on the same number of document tokens and of block rows; the figure is document
tokens per second. The peer runs its own draft model, objective, backend and optimiser with sdpa attention on one rank
(NO_SHARD, without the wrapper that several ranks need, which only helps it). It also counts right predictions in its
loss; we do that at evaluation.

First both compute the loss of one small case with all legal anchors from the same weights: it has to agree, or the two
do not train the same thing. Peak memory is the high-water mark of the process's resident memory, with the imports
(which are the libraries', not the trainers') and without. Goals: at least 1.5 times the tokens per second (aim: 3
times) and at most 0.7 of the peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from train_case import Case

HERE = Path(__file__).parent
TORCH = "torch==2.13.0"
"""The release we run on. The peer asks for 2.11.0 exactly; it runs on this one too."""
PEER, PEER_NEEDS = "specforge", ("transformers==5.8.1", "psutil")
CHECK = Case(length=48, anchors=47, vocabulary=500, documents=2)
"""As many anchors as legal positions: nothing is left to chance."""
CHECKS = {"DFlash": CHECK, "DSpark": replace(CHECK, head_rank=16)}
SHAPES: dict[str, dict[str, int]] = {
    "recipe": {"block": 16, "anchors": 512, "length": 2048},
    "medium": {"block": 16, "anchors": 256, "length": 1024},
    "small": {"block": 8, "anchors": 64, "length": 512, "documents": 4},
    "few": {"block": 16, "anchors": 64, "length": 2048},
    "dspark": {"block": 8, "anchors": 64, "length": 512, "documents": 4, "head_rank": 256},
    "dspark-medium": {"block": 8, "anchors": 256, "length": 1024, "head_rank": 256},
}


def main() -> None:
    options = _options()
    peer = options.peer_python or _made(options.setup)
    version = _output([peer, "-c", f"from importlib.metadata import version as v; print(v('{PEER}'), v('torch'))"])
    print(
        f"peer: {PEER} {version.split()[0]} on torch {version.split()[1]}; {options.threads} threads, fp32", flush=True
    )
    for method, case in CHECKS.items():
        _check_same_loss(method, case, peer, options.threads)
    cases = [(name, Case.of(options, **SHAPES[name])) for name in options.shapes] or [("as asked", Case.of(options))]
    for name, case in cases:
        _compare(name, case, peer, options)


class Side:
    """A worker process that waits for orders."""

    def __init__(self, side: str, python: str, case: Case, threads: int) -> None:
        # Our packages must not be found by the peer's Python, nor the caller's settings change only one side.
        environment = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": str(threads)}
        if side == "ours":
            environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), str(HERE.parent / "kernels")])
        command = [python, str(HERE / "train_peer_worker.py"), side, json.dumps(asdict(case)), str(threads)]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, order: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("="):
                answer: dict[str, Any] = json.loads(line[1:])
                return answer
        raise SystemExit(f"{self._process.args} ended with {self._process.wait()}")

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _check_same_loss(method: str, case: Case, peer: str, threads: int) -> None:
    losses = []
    for side, python in (("ours", sys.executable), ("peer", peer)):
        worker = Side(side, python, case, threads)
        losses.append(worker.ask("steps 2")["losses"])
        worker.end()
    print(f"{method}: loss of the same small case before the first two steps: ours {losses[0]}, peer {losses[1]}")
    if abs(losses[0][0] / losses[1][0] - 1) > 1e-4:
        raise SystemExit("the losses differ: the two sides do not train the same thing")


def _compare(name: str, case: Case, peer: str, options: argparse.Namespace) -> None:
    sides = {"ours": Side("ours", sys.executable, case, options.threads)}
    sides["peer"] = Side("peer", peer, case, options.threads)
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    for round_ in range(options.rounds + 1):
        for side, worker in sides.items() if round_ % 2 else reversed(list(sides.items())):
            spent = worker.ask(f"steps {options.steps}")["seconds"] / options.steps
            if round_:  # the first warms up
                seconds[side].append(spent)
    memory = {side: worker.ask("memory") for side, worker in sides.items()}
    for worker in sides.values():
        worker.end()
    print(f"\n{name}: {asdict(case)}")
    median = {side: statistics.median(found) for side, found in seconds.items()}
    for side in sides:
        most, least = case.tokens / min(seconds[side]), case.tokens / max(seconds[side])
        above = memory[side]["peak"] - memory[side]["imported"]
        print(
            f"  {side}: {case.tokens / median[side]:8.1f} tokens/s ({least:.1f} to {most:.1f}), {median[side]:.2f} s a "
            f"step; peak {memory[side]['peak'] / 2**20:.0f} MB, {above / 2**20:.0f} MB above the imports"
        )
    whole = memory["ours"]["peak"] / memory["peer"]["peak"]
    above = {side: found["peak"] - found["imported"] for side, found in memory.items()}
    print(f"  tokens/s, ours / peer: {median['peer'] / median['ours']:.2f} (goal 1.5, aim 3)")
    print(f"  peak memory, ours / peer: {whole:.2f} (goal 0.7); above the imports: {above['ours'] / above['peer']:.2f}")


def _made(folder: Path) -> str:
    """The peer's environment. Its whole list of needs has a serving engine in it that training does not import."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "--no-input", "install", "-q", "--progress-bar", "off"]
    subprocess.run([*pip, TORCH], check=True)
    subprocess.run([*pip, *PEER_NEEDS], check=True)
    subprocess.run([*pip, "--no-deps", "--upgrade", PEER], check=True)
    return str(python)


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--peer-python", help="Python of an environment that has the peer")
    where.add_argument("--setup", type=Path, metavar="DIRECTORY", help="make the peer's environment there, if not made")
    Case.add_options(parser)
    parser.add_argument("--shapes", nargs="*", choices=sorted(SHAPES), default=[], help="named shapes, one by one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1, help="steps of one side before the other's turn")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
