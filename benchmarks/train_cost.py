"""Time of a training step against the length of the document and the number of anchors, with a plot.

    python benchmarks/train_cost.py [--plot docs/images/training-cost.png] [--threads 1] [--hidden 512] ...

Anchors are spread evenly over one document, so the blocks see `anchors * length / 2` context rows in all. Two times
are taken for every pair, rounds over all pairs alternating, medians over the rounds: of a whole optimiser step and
of block attention alone, forward and backward. The fits, by least squares on relative errors:

    attention = a + b * anchors + c * visible            step = a + b * anchors + c * visible + d * length

Goal: R^2 of at least 0.98 for both, that is no term in anchors squared, in length squared, or in both squared.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from train_case import Case
from train_step import Step

from specflow.drafters.dflash.attention import block_attention
from specflow.drafters.dflash.blocks import assemble


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    cases = [Case.of(options, length=n, anchors=a) for n in options.lengths for a in options.anchor_counts]
    steps = [Step(case) for case in cases]
    attentions = [_attention(step) for step in steps]
    times: dict[str, list[list[float]]] = {"step": [[] for _ in cases], "attention": [[] for _ in cases]}
    for round_ in range(options.rounds + 1):
        for i in range(len(cases)):
            for name, run in (("step", steps[i].run), ("attention", attentions[i])):
                spent = _timed(run)
                if round_:  # the first round warms up
                    times[name][i].append(spent)
    medians = {name: np.array([statistics.median(found) for found in rows]) for name, rows in times.items()}
    visible = np.array([step.visible for step in steps], dtype=float)
    anchors = np.array([case.anchors for case in cases], dtype=float)
    lengths = np.array([case.length for case in cases], dtype=float)
    print("length anchors   visible  step s  attention s  attention ns per visible row and query row")
    for i, case in enumerate(cases):
        rows = visible[i] * case.layers * case.block
        print(
            f"{case.length:6d} {case.anchors:7d} {steps[i].visible:9d} {medians['step'][i]:7.3f} "
            f"{medians['attention'][i]:12.4f} {medians['attention'][i] / rows * 1e9:20.2f}"
        )
    columns = {"attention": [anchors, visible], "step": [anchors, visible, lengths]}
    fits = {name: _fit(np.stack([np.ones_like(visible), *columns[name]], axis=1), medians[name]) for name in columns}
    for name, (coefficients, quality) in fits.items():
        print(f"{name}: R^2 {quality:.4f} (goal 0.98), coefficients {[float(f'{c:.3g}') for c in coefficients]}")
    if options.plot:
        _plot(options.plot, cases, medians, visible, fits)


def _timed(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _attention(step: Step) -> Callable[[], None]:
    """All layers' attention of a step, forward and backward, on random rows."""
    case, blocks = step.case, assemble(step.sources, block_size=step.case.block)
    assert blocks is not None
    count, rows = blocks.visible_N.numel(), blocks.context_positions_S.numel()
    shapes = [(count, case.block, case.heads, case.head_dim)]
    shapes += [(count, case.block, case.kv_heads, case.head_dim)] * 2 + [(rows, case.kv_heads, case.head_dim)] * 2
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]

    def run() -> None:
        for _ in range(case.layers):
            out = block_attention(*inputs, spans=blocks.spans, visible_N=blocks.visible_N)
            torch.autograd.grad(out, inputs, torch.ones_like(out))

    return run


def _fit(columns: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, float]:
    """Least squares on relative errors; R^2 of the times."""
    weights = 1 / times
    coefficients, *_ = np.linalg.lstsq(columns * weights[:, None], times * weights, rcond=None)
    left = times - columns @ coefficients
    return coefficients, 1 - float((left**2).sum() / ((times - times.mean()) ** 2).sum())


def _plot(path: Path, cases: list[Case], medians: dict[str, Any], visible: np.ndarray, fits: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for length in sorted({case.length for case in cases}):
        chosen = [i for i, case in enumerate(cases) if case.length == length]
        counts = [cases[i].anchors for i in chosen]
        left.plot(counts, medians["step"][chosen], marker="o", label=f"{length} tokens")
        right.plot(visible[chosen] / 1e3, medians["attention"][chosen], "o", label=f"{length} tokens")
    left.set(xlabel="anchors", ylabel="seconds", title=f"A training step (R² {fits['step'][1]:.3f})")
    coefficients, quality = fits["attention"]
    order = np.argsort(visible)
    counts = np.array([case.anchors for case in cases], dtype=float)
    line = coefficients[0] + coefficients[1] * counts + coefficients[2] * visible
    right.plot(visible[order] / 1e3, line[order], color="grey", linewidth=1, label="fit")
    right.set(
        xlabel="visible context rows, summed over blocks (thousands)",
        ylabel="seconds",
        title=f"Its block attention, forward and backward (R² {quality:.3f})",
    )
    for axis in (left, right):
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False)
    figure.savefig(path, dpi=120)
    print(f"plot: {path}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    Case.add_options(parser)
    parser.set_defaults(vocabulary=2000)  # attention is the subject, not the head
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096])
    parser.add_argument("--anchor-counts", type=int, nargs="+", default=[16, 64, 128, 192])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--plot", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
