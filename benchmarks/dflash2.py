"""What convolution and selector add to a draft round and to a whole round, beside plain DFlash in the same run.

    python benchmarks/dflash2.py --target artifacts/target/<key> [--drafter artifacts/drafter/<key>/drafter]

A draft round is all that happens between the committed rows and the proposals: the pass of the block, the target's head
over its rows, and the choice of the tokens. A whole round is that and the verification of the block: the target's pass
and head over its rows. Rows that were accepted are fed alike by all and are left out of both.

Three proposers with the same backbone: DFlash, with convolutions, with convolutions and selector. In every turn each
verifies a block and proposes one, behind the same committed rows; verification before every proposal leaves the
processor's caches as they are in decoding. The order changes from turn to turn. What a part adds is the median of the
differences within a turn. The goal is a share below 10 % of a draft round. Weights are random without --drafter.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from specflow.drafters.base import Committed
from specflow.drafters.dflash2.geometry import DFlash2Geometry
from specflow.drafters.dflash2.network import DFlash2Network
from specflow.drafters.dflash2.proposer import DFlash2Proposer
from specflow.drafters.loading import load_network
from specflow.drafters.sizes import sizes_of_target
from specflow.targets.target import Target

NAMES = ("DFlash", "with convolution", "with convolution and selector")
WARM_UP = 5


def main() -> None:
    options = _options()
    target = Target.load(options.target, precision=options.precision, threads=options.threads)
    network = load_network(options.drafter) if options.drafter else _random_network(options)
    assert isinstance(network, DFlash2Network), "--drafter has to be one of DFlash 2"
    made = [_proposer(target, options, network, convolves=c, selects=s) for c, s in ((0, 0), (1, 0), (1, 1))]
    drafting: list[list[float]] = [[] for _ in made]
    verifying: list[float] = []
    verify = _verification(target, options, network.geometry)
    for turn in range(options.rounds + WARM_UP):
        for place in range(3):
            own = (turn + place) % 3
            begin = time.perf_counter()
            verify()
            verified = time.perf_counter()
            made[own].propose(turn + 1)
            drafted = time.perf_counter()
            if turn >= WARM_UP:
                verifying.append(verified - begin)
                drafting[own].append(drafted - verified)
    geometry = network.geometry
    print(
        f"{options.precision}, {target.threads} threads, {geometry.num_layers} layers, block {geometry.block_size}, "
        f"{options.context} rows of context, vocabulary {target.vocab_size}, {options.rounds} turns"
    )
    _report(drafting, statistics.median(verifying))


def _report(drafting: list[list[float]], verification: float) -> None:
    for name, found in zip(NAMES, drafting, strict=True):
        low, middle, high = statistics.quantiles(found, n=4)
        print(f"{name}: {1e3 * middle:.2f} ms a draft round (quartiles {1e3 * low:.2f} to {1e3 * high:.2f})")
    print(f"verification: {1e3 * verification:.2f} ms")
    whole = statistics.median(drafting[2])
    parts = {"convolution": (0, 1), "selector": (1, 2), "together": (0, 2)}
    for name, (less, more) in parts.items():
        # Differences within a turn: what slows the machine down slows both.
        added = statistics.median(b - a for a, b in zip(drafting[less], drafting[more], strict=True))
        print(
            f"{name}: {1e3 * added:+.2f} ms, {added / whole:.1%} of a draft round, "
            f"{added / (whole + verification):.1%} of a whole round"
        )


def _verification(target: Target, options: argparse.Namespace, geometry: DFlash2Geometry) -> Callable[[], Tensor]:
    """The target's pass and head over a block behind the committed rows; nothing is committed."""
    cache = target.new_cache(1, options.context + geometry.block_size)
    target.forward(torch.zeros(1, options.context, dtype=torch.int64), cache)
    cache.commit(options.context)
    ids = torch.zeros(1, geometry.block_size, dtype=torch.int64)

    def verify() -> Tensor:
        output = target.forward(ids, cache, layer_ids=geometry.layer_ids)
        return target.head(output.last_hidden_BTH).argmax(dim=-1)

    return verify


def _random_network(options: argparse.Namespace) -> DFlash2Network:
    config = json.loads((options.target / "config.json").read_text())
    geometry = DFlash2Geometry(
        **sizes_of_target(config),
        num_layers=options.layers,
        block_size=options.block,
        layer_ids=tuple(range(min(2, int(config["num_hidden_layers"]) - 1))),
        mask_token_id=0,
        conv_kernel_size=2,
        conv_group_size=16,
        selector_rank=256,
        selector_top_k=16,
    )
    torch.manual_seed(0)
    network = DFlash2Network(geometry).requires_grad_(False)
    assert network.selector is not None
    # A codebook of zeros as it comes from the system has no memory behind it: every first read would take a page.
    for codebook in (network.selector.predecessor_codebook, network.selector.successor_codebook):
        codebook.normal_(std=0.1)
    return network


def _proposer(
    target: Target, options: argparse.Namespace, network: DFlash2Network, *, convolves: int, selects: int
) -> DFlash2Proposer:
    """The network without what is not asked for, behind ``--context`` committed rows."""
    whole = network.geometry
    geometry = replace(
        whole,
        conv_kernel_size=convolves * whole.conv_kernel_size,
        conv_group_size=convolves * whole.conv_group_size,
        selector_rank=selects * whole.selector_rank,
        selector_top_k=selects * whole.selector_top_k,
    )
    less = DFlash2Network(geometry).requires_grad_(False)
    less.load_state_dict({name: value for name, value in network.state_dict().items() if name in less.state_dict()})
    made = DFlash2Proposer(less, embed=target.embed, head=target.head, precision=options.precision)
    made.reset(options.context + whole.block_size)
    torch.manual_seed(1)
    features_TKH = torch.randn(options.context, whole.num_features, whole.hidden_size)
    made.extend(Committed(features_TKH=features_TKH, next_ids_T=torch.zeros(options.context, dtype=torch.int64)))
    return made


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--drafter", type=Path, help="a trained DFlash 2 drafter; its sizes count then")
    parser.add_argument("--precision", default="packed", choices=["fp32", "bf16", "packed"])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--block", type=int, default=8)
    parser.add_argument("--context", type=int, default=256, help="committed rows")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=None, help="none: probed")
    return parser.parse_args()


if __name__ == "__main__":
    main()
