"""EAGLE-3 training against plain PyTorch with dense masks: tokens per second and peak memory, side by side.

    python benchmarks/eagle3_training.py [--length 512] [--prompt 128] [--draft-vocabulary 16384] [--threads 2] ...

Both sides train the same network from the same weights on the same documents in fp32, one document in a pass, each in a
process of its own; their steps alternate. A step is: the target's distributions, loss of every depth, gradients,
clipping, AdamW. The figure is document tokens per second, prompts included. The losses of the first two steps have to
agree, or the two do not train the same thing. Goal: twice the tokens per second.

The hidden states change from step to step, as in a first epoch; with ``--later-epochs`` they stay, and ours remembers
which tokens the draft vocabulary drops.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eagle3_case import Case

HERE = Path(__file__).parent


class Side:
    """A worker process that waits for orders."""

    def __init__(self, side: str, case: Case, threads: int) -> None:
        packages = os.pathsep.join([str(HERE.parent), str(HERE.parent / "kernels")])
        environment = {**os.environ, "PYTHONPATH": packages, "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, str(HERE / "eagle3_worker.py"), side, json.dumps(asdict(case)), str(threads)]
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
        raise SystemExit(f"a side ended with {self._process.wait()}")

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    options = _options()
    case = Case.of(options)
    sides = {name: Side(name, case, options.threads) for name in ("ours", "plain")}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(options.steps + 2):
        found = {name: side.ask("step" if options.later_epochs else "new step") for name, side in sides.items()}
        if number < 2:  # warms up
            _same(found["ours"]["loss"], found["plain"]["loss"], step=number)
            continue
        for name, answer in found.items():
            seconds[name].append(answer["seconds"])
    memory = {name: side.ask("memory") for name, side in sides.items()}
    for side in sides.values():
        side.end()
    print(asdict(case))
    for name, spent in seconds.items():
        above = (memory[name]["peak"] - memory[name]["begun"]) / 2**20
        print(
            f"  {name}: {case.tokens / statistics.median(spent):8.1f} tokens/s ({case.tokens / max(spent):.1f} to "
            f"{case.tokens / min(spent):.1f}); peak {memory[name]['peak'] / 2**20:.0f} MB, {above:.0f} MB above what "
            "was held before the first step"
        )
    ratio = statistics.median(seconds["plain"]) / statistics.median(seconds["ours"])
    grown = {name: found["peak"] - found["begun"] for name, found in memory.items()}
    print(f"  tokens/s, ours / plain: {ratio:.2f} (goal 2)")
    print(f"  memory above the start, ours / plain: {grown['ours'] / grown['plain']:.2f}")


def _same(ours: float, plain: float, *, step: int) -> None:
    print(f"loss before step {step}: ours {ours:.6f}, plain {plain:.6f}", flush=True)
    if abs(ours / plain - 1) > 1e-4:
        raise SystemExit("the losses differ: the two sides do not train the same thing")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    Case.add_options(parser)
    parser.add_argument("--steps", type=int, default=6, help="measured steps of each side")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--later-epochs", action="store_true", help="the same documents in every step")
    return parser.parse_args()


if __name__ == "__main__":
    main()
