"""Peak memory of a training step against the number of anchors and the size of the vocabulary.

    python benchmarks/train_memory.py [--length 512] [--hidden 512] ...

Each cell is a fresh process that takes two steps; the peak is its resident memory's high-water mark, less what it held
before the first step (weights, the frozen head, features; AdamW's two moments are part of the peak). Beside it stand
what would be needed to hold the logits of all rows once in fp32, and the estimate that training logs: that of a pass,
with gradients and moments. Goal: the peak does
not grow with anchors times vocabulary.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict

import torch
from train_case import Case, forget_peak, peak, resident
from train_step import Step

MEGABYTE = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    Case.add_options(parser)
    parser.add_argument("--vary-anchors", type=int, nargs="+", default=[16, 128, 512])
    parser.add_argument("--vary-vocabulary", type=int, nargs="+", default=[8000, 32000, 128000])
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(_measured(Case(**json.loads(options.measure)))))
        return
    print("anchors vocabulary  peak MB  estimate MB  estimate/peak  logits of all rows MB")
    for vocabulary in options.vary_vocabulary:
        for anchors in options.vary_anchors:
            case = Case.of(options, anchors=anchors, vocabulary=vocabulary)
            command = [sys.executable, __file__, "--measure", json.dumps(asdict(case))]
            found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            logits = case.documents * anchors * (case.block - 1) * vocabulary * 4
            print(
                f"{anchors:7d} {vocabulary:10d} {found['peak'] / MEGABYTE:8.0f} {found['estimate'] / MEGABYTE:12.0f} "
                f"{found['estimate'] / found['peak']:14.2f} {logits / MEGABYTE:22.0f}",
                flush=True,
            )


def _measured(case: Case) -> dict[str, int]:
    torch.randn(64, 64) @ torch.randn(64, 64)  # the libraries' own buffers
    step = Step(case)
    before = resident()
    forget_peak()
    for _ in range(2):
        step.run()
    held = step.learner.pass_bytes(
        anchors=min(case.documents * case.anchors, step.learner.anchors_per_pass or sys.maxsize),
        context_rows=case.tokens,
        softmax_rows=case.vocabulary,
    )
    assert held is not None
    parameters = sum(p.numel() for p in step.network.parameters())
    return {"peak": peak() - before, "estimate": held + 12 * parameters}


if __name__ == "__main__":
    main()
