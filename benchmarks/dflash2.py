"""What convolution and selector add to a draft round, beside plain DFlash in the same run.

    python benchmarks/dflash2.py --target artifacts/target/<key> --precision packed --layers 2 --block 8

Three proposers with the same backbone: DFlash, with convolutions, with convolutions and selector. Each proposes in
turn, many times, after the same committed rows; printed are medians of a round and of the parts that were added, and
their share of the whole round. The goal is a share below 10 %. Weights are random: no part's time depends on them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from specflow.drafters.base import Committed
from specflow.drafters.dflash2.geometry import DFlash2Geometry
from specflow.drafters.dflash2.method import become_fresh
from specflow.drafters.dflash2.network import DFlash2Network
from specflow.drafters.dflash2.proposer import DFlash2Proposer
from specflow.drafters.sizes import sizes_of_target
from specflow.targets.target import Target

NAMES = ("DFlash", "with convolution", "with convolution and selector")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--precision", default="packed", choices=["fp32", "bf16", "packed"])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--block", type=int, default=8)
    parser.add_argument("--context", type=int, default=256, help="committed rows")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=None, help="none: probed")
    options = parser.parse_args()
    target = Target.load(options.target, precision=options.precision, threads=options.threads)
    proposers = [_proposer(target, options, convolves=c, selects=s) for c, s in ((0, 0), (1, 0), (1, 1))]
    seconds: list[list[float]] = [[] for _ in proposers]
    for turn in range(options.rounds + 5):
        for found, proposer in zip(seconds, proposers, strict=True):
            begin = time.perf_counter()
            proposer.propose(turn + 1)
            if turn >= 5:
                found.append(time.perf_counter() - begin)
    medians = [statistics.median(found) for found in seconds]
    print(
        f"{options.precision}, {target.threads} threads, {options.layers} layers, block {options.block}, "
        f"{options.context} rows of context, vocabulary {target.vocab_size}"
    )
    for name, median, found in zip(NAMES, medians, seconds, strict=True):
        spread = statistics.quantiles(found, n=4)
        print(f"{name}: {1e3 * median:.2f} ms a round (quartiles {1e3 * spread[0]:.2f} to {1e3 * spread[2]:.2f})")
    # Differences of neighbouring rounds: what slows the machine down slows both.
    convolution, selector = (
        statistics.median(b - a for a, b in zip(seconds[i], seconds[i + 1], strict=True)) for i in (0, 1)
    )
    whole = medians[2]
    print(
        f"convolution {1e3 * convolution:.2f} ms, {convolution / whole:.1%}; selector {1e3 * selector:.2f} ms, "
        f"{selector / whole:.1%}; together {(convolution + selector) / whole:.1%} of a round"
    )


def _proposer(target: Target, options: argparse.Namespace, *, convolves: int, selects: int) -> DFlash2Proposer:
    config = json.loads((options.target / "config.json").read_text())
    layers = tuple(range(min(2, int(config["num_hidden_layers"]) - 1)))
    geometry = DFlash2Geometry(
        **sizes_of_target(config),
        num_layers=options.layers,
        block_size=options.block,
        layer_ids=layers,
        mask_token_id=0,
        conv_kernel_size=2 * convolves,
        conv_group_size=16 * convolves,
        selector_rank=256 * selects,
        selector_top_k=16 * selects,
    )
    torch.manual_seed(0)
    network = DFlash2Network(geometry)
    become_fresh(network, seed=0, std=0.1)
    made = DFlash2Proposer(network, embed=target.embed, head=target.head, precision=options.precision)
    made.reset(options.context + options.block)
    features_TKH = torch.randn(options.context, len(layers), geometry.hidden_size)
    made.extend(Committed(features_TKH=features_TKH, next_ids_T=torch.zeros(options.context, dtype=torch.int64)))
    return made


if __name__ == "__main__":
    main()
