"""Drafting of several requests in one pass against request by request: the same requests, alternating.

    python benchmarks/drafting.py --target artifacts/target/<key> --drafter artifacts/drafter/<key> \
        --tokens artifacts/tokens/<key> --concurrency 8 --precision packed --threads 2

Held-out prompts are decoded greedily. Prints tokens per second, seconds of drafting per request and round, and the
ratios, per concurrency; medians over the rounds. The outputs have to be equal.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specflow.data.documents import iterate_documents
from specflow.decoding import rounds
from specflow.decoding.drafting import look_ahead
from specflow.decoding.records import Generation
from specflow.decoding.speculative import decode_speculative_batch
from specflow.drafters.base import Proposer
from specflow.drafters.loading import load_drafter
from specflow.serving.requests import heldout_requests
from specflow.targets.target import Target

LookAhead = Callable[[Sequence[Proposer], Sequence[int]], float]
MODES: dict[str, LookAhead] = {"together": look_ahead, "one by one": lambda proposers, anchors: 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("target", "drafter", "tokens"):
        parser.add_argument(f"--{name}", type=Path, required=True, help="an artifact")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[8])
    parser.add_argument("--precision", default="packed")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None, help="none: probed")
    options = parser.parse_args()
    target = Target.load(options.target, precision=options.precision, threads=options.threads)
    proposer = load_drafter(options.drafter, target)
    prompts = [list(request.prompt) for request in heldout_requests(iterate_documents(options.tokens))]
    for concurrency in options.concurrency:
        measure(target, proposer, prompts[:concurrency], options)


def measure(target: Target, proposer: Proposer, prompts: list[list[int]], options: argparse.Namespace) -> None:
    speeds: dict[str, list[float]] = {mode: [] for mode in MODES}
    drafting: dict[str, list[float]] = {mode: [] for mode in MODES}
    tokens: dict[str, list[list[int]]] = {}
    for number in range(options.rounds + 1):
        for mode in MODES:
            seconds, found = decode(target, proposer, prompts, mode, options.new_tokens)
            tokens[mode] = [generation.tokens for generation in found]
            if number:  # the first warms up
                made = [made for generation in found for made in generation.rounds]
                speeds[mode].append(sum(r.delivered for r in made) / seconds)
                drafting[mode].append(sum(r.draft_seconds for r in made) / len(made))
    equal = tokens["together"] == tokens["one by one"]
    print(f"{len(prompts)} requests, {options.precision}, {target.threads} threads; equal outputs: {equal}")
    for mode in MODES:
        print(
            f"  {mode}: {statistics.median(speeds[mode]):.2f} tokens/s, "
            f"{1e3 * statistics.median(drafting[mode]):.1f} ms of drafting per request and round"
        )
    faster = statistics.median(speeds["together"]) / statistics.median(speeds["one by one"])
    drafted = statistics.median(drafting["one by one"]) / statistics.median(drafting["together"])
    print(f"  together / one by one: tokens/s {faster:.2f}, speed of drafting {drafted:.2f}", flush=True)


def decode(
    target: Target, proposer: Proposer, prompts: list[list[int]], mode: str, limit: int
) -> tuple[float, list[Generation]]:
    """Seconds of decoding, prefill left out, and what was said."""
    engine: Any = rounds
    engine.look_ahead = MODES[mode]
    begin = time.perf_counter()
    found = decode_speculative_batch(target, proposer, prompts, max_new_tokens=limit, batch_size=len(prompts))
    return time.perf_counter() - begin - sum(generation.prefill_seconds for generation in found), found


if __name__ == "__main__":
    main()
