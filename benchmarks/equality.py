"""Greedy decoding with a drafter against plain decoding, token for token, on whole files of prompts.

    python benchmarks/equality.py TARGET DRAFTER PROMPTS.jsonl ... [--precision fp32] [--max-new-tokens 64]

The bench stage counts differences on the prompts it measures; this counts them on all prompts, which takes longer
(fp32, one thread, 270 prompts of the quickstart: about half an hour on a small machine). In fp32 no difference is
allowed; the exit code is 1 if there is one. Plain decoding runs in batches, the drafter one prompt at a time.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from specflow.data.rendering import Renderer
from specflow.decoding.plain import decode_plain
from specflow.decoding.speculative import decode_speculative
from specflow.drafters.loading import load_drafter
from specflow.targets.target import Target


def main() -> int:
    options = _options()
    target = Target.load(options.target, precision=options.precision, threads=options.threads)
    proposer = load_drafter(options.drafter, target)
    differing = 0
    for path in options.prompts:
        differing += _compare(target, proposer, path, options)
    return int(differing > 0)


def _compare(target: Target, proposer: object, path: Path, options: argparse.Namespace) -> int:
    renderer = Renderer(target.tokenizer)
    lines = path.read_text(encoding="utf-8").splitlines()
    prompts = [renderer.ids(json.loads(line)["messages"], answer=True) for line in lines]
    plain = decode_plain(target, prompts, max_new_tokens=options.max_new_tokens, batch_size=options.batch_size)
    differing = tokens = rounds = committed = 0
    for number, (prompt, expected) in enumerate(zip(prompts, plain, strict=True), start=1):
        found = decode_speculative(target, proposer, prompt, max_new_tokens=options.max_new_tokens)
        tokens += len(found.tokens)
        rounds += len(found.rounds)
        committed += sum(r.accepted + 1 for r in found.rounds)
        if list(found.tokens) != list(expected.tokens):
            differing += 1
            print(f"{path.name}:{number} differs: {found.tokens} instead of {expected.tokens}", flush=True)
        if number % 30 == 0 or number == len(prompts):
            print(
                f"{path.name}: {number} of {len(prompts)} prompts, {tokens} tokens, {differing} differing, "
                f"tau {committed / max(1, rounds):.2f}",
                flush=True,
            )
    return differing


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="target artifact or Hugging Face directory")
    parser.add_argument("drafter", type=Path, help="drafter artifact")
    parser.add_argument("prompts", type=Path, nargs="+", help="JSON lines with messages")
    parser.add_argument("--precision", default="fp32", help="fp32, bf16 or packed")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=24, help="of plain decoding")
    parser.add_argument("--threads", type=int, default=None, help="none: probed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
