"""Plain decoding of the engine against ``transformers.generate``: same prompts, dtype and threads, alternating.

    python benchmarks/decode.py --target artifacts/target/<key> --precision fp32 bf16 packed --threads 1

Prints tokens per second after the first token at batch 1 and the ratio, per precision; ``packed`` has no
counterpart in transformers and is compared with its fp32. One run, warm; medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from specflow.decoding.plain import decode_plain
from specflow.targets.target import Target

QUESTIONS = ("What makes the sea salty?", "Write two sentences about a bridge.", "List four uses of a rope.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16", "packed"])
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None, help="none: probed")
    options = parser.parse_args()
    for precision in options.precision:
        measure(options, precision)


def measure(options: argparse.Namespace, precision: str) -> None:
    target = Target.load(options.target, precision=precision, threads=options.threads)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(options.target, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    target.end_ids = frozenset()  # both decode exactly --tokens tokens
    prompts = [
        target.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in QUESTIONS
    ]
    engine(target, prompts[0], 4)
    generate(model, prompts[0], 4)
    speeds: dict[str, list[float]] = {"engine": [], "transformers": []}
    equal = 0
    for _ in range(options.rounds):
        for prompt in prompts:
            speed, tokens = engine(target, prompt, options.tokens)
            speeds["engine"].append(speed)
            speed, expected = generate(model, prompt, options.tokens)
            speeds["transformers"].append(speed)
            equal += tokens == expected
    ours, theirs = (statistics.median(speeds[name]) for name in ("engine", "transformers"))
    runs = len(speeds["engine"])
    print(
        f"{precision}, {target.threads} threads: engine {ours:.1f} tokens/s, transformers {str(dtype)[6:]} "
        f"{theirs:.1f} tokens/s, ratio {ours / theirs:.2f}; equal tokens in {equal} of {runs} runs",
        flush=True,
    )


def engine(target: Target, prompt: list[int], count: int) -> tuple[float, list[int]]:
    """Tokens per second after the first, and the tokens."""
    result = decode_plain(target, [prompt], max_new_tokens=count)[0]
    return (len(result.tokens) - 1) / result.decode_seconds, result.tokens


@torch.inference_mode()
def generate(model: Any, prompt: list[int], count: int) -> tuple[float, list[int]]:
    """The same for transformers; a streamer notes when the first token came."""
    clock = _Clock()
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
        streamer=clock,
    )
    tokens = output[0, len(prompt) :].tolist()
    return (len(tokens) - 1) / (clock.times[-1] - clock.times[1]), tokens


class _Clock:
    """A streamer that keeps the time of every call: the prompt, then each token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


if __name__ == "__main__":
    main()
