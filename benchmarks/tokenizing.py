"""Conversations to documents against the tokenizer's own ``encode`` of the same rendered text; prints the ratio.

    python benchmarks/tokenizing.py TARGET_DIRECTORY [--megabytes 8] [--workers 1 2] [--answer-words 180]

Rows of several turns are generated from the words of this repository's documentation. First both sides run chunk by
chunk in turn, in this process: reading, rendering, spans and writing on one side, nothing but ``encode`` on the other.
Goal: a ratio of at least 0.8. Then the whole file runs through 1, 2, ... processes, as the stage does it: tokens per
second between the first and the last result, and peak memory at quarters of the file, which must not grow.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread on either side

import psutil

from specflow.data.documents import TOKENS_FILE
from specflow.data.rendering import Renderer
from specflow.data.streaming import chunks, count_lines, mapped
from specflow.data.tokenizer import load_tokenizer
from specflow.data.tokenizing import Options
from specflow.data.tokenrows import chunk_tokenizer

DOCS = Path(__file__).parent.parent / "docs"


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        path = Path(folder) / "conversations.jsonl"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(_rows(options))
        print(f"{count_lines(path)} rows, {path.stat().st_size / 1e6:.1f} MB")
        if not options.skip_ratio:
            _ratio(options, path)
        for workers in options.workers:
            _processes(options, path, workers)


def _ratio(options: argparse.Namespace, path: Path) -> None:
    tokenizer, _ = load_tokenizer(options.target)
    renderer = Renderer(tokenizer)
    tokenize = chunk_tokenizer(options.target, Options(max_length=options.max_length))
    seconds, tokens, encoded = {"encode": 0.0, "tokenize": 0.0}, 0, 0
    output = (path.parent / TOKENS_FILE).open("wb")
    for number, chunk in enumerate(chunks(path)):
        messages = [json.loads(line)["messages"] for line in chunk.lines]
        texts = [renderer.chat(m).text(len(m)) for m in messages]
        for side in ("encode", "tokenize") if number % 2 else ("tokenize", "encode"):
            begin = time.perf_counter()
            if side == "encode":
                encoded += sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)
            else:
                made = tokenize(chunk)
                output.write(made.lines)
                tokens += made.tally.metrics()["tokens"]
            seconds[side] += time.perf_counter() - begin
        if sum(seconds.values()) > options.seconds:
            break
    output.close()
    print(f"encode    {encoded / seconds['encode']:9.0f} tokens/s")
    print(f"tokenize  {tokens / seconds['tokenize']:9.0f} tokens/s  ({tokens / encoded:.3f} of the tokens)")
    print(f"ratio tokenize / encode, time for the same rows: {seconds['encode'] / seconds['tokenize']:.3f} (goal 0.8)")


def _processes(options: argparse.Namespace, path: Path, workers: int) -> None:
    rows, done, tokens, first, peaks = count_lines(path), 0, 0, 0.0, []
    memory = 0
    with (path.parent / TOKENS_FILE).open("wb") as file:
        arguments = (options.target, Options(max_length=options.max_length))
        for made in mapped(path, chunk_tokenizer, arguments, workers=workers):
            file.write(made.lines)
            if first:
                tokens += made.tally.metrics()["tokens"]
            first = first or time.perf_counter()
            done += made.tally.rows
            memory = max(memory, _resident())
            if 4 * done // rows > len(peaks):
                peaks.append(f"{memory / 1e6:.0f}")
    rate = tokens / (time.perf_counter() - first)
    print(f"{workers} processes: {rate:9.0f} tokens/s; peak memory at quarters of the file: {', '.join(peaks)} MB")


def _resident() -> int:
    """Of this process and its children, in bytes."""
    own = psutil.Process()
    return sum(int(p.memory_info().rss) for p in (own, *own.children(recursive=True)))


def _rows(options: argparse.Namespace) -> Iterator[str]:
    words = " ".join(p.read_text(encoding="utf-8") for p in sorted(DOCS.glob("*.md"))).split(" ")
    generator = random.Random(0)
    size, number = 0, 0

    def text(count: int) -> str:
        # Words are drawn one by one: repeated passages would be found in the tokenizer's caches.
        return " ".join(generator.choices(words, k=max(1, round(generator.uniform(0.5, 1.5) * count))))

    while size < options.megabytes * 1e6:
        turns = generator.randint(1, options.turns)
        pairs = [(("user", options.question_words), ("assistant", options.answer_words)) for _ in range(turns)]
        messages = [{"role": role, "content": text(count)} for pair in pairs for role, count in pair]
        line = json.dumps({"id": f"r{number}", "split": "train", "kind": "k", "messages": messages}) + "\n"
        number += 1
        size += len(line)
        yield line


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--megabytes", type=float, default=8.0)
    parser.add_argument("--turns", type=int, default=4, help="most turns of a row")
    parser.add_argument("--question-words", type=int, default=60)
    parser.add_argument("--answer-words", type=int, default=180)
    parser.add_argument("--max-length", type=int, default=8192)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=20.0, help="longest time for the ratio")
    parser.add_argument("--skip-ratio", action="store_true")
    parser.add_argument("--scratch", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
