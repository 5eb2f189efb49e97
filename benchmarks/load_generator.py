"""What the load generator itself adds to the figures that it measures, against a server that only streams.

    python benchmarks/load_generator.py --streams 256 --every 0.05

The server, in a process of its own, states when it handed every chunk to the system; the generator states when it had
it. Prints how far the time per token by the generator is from that by the server's own stamps (at most 5 % is asked
for), and how late a chunk was seen on average, over the time between two chunks (at most 5 %). Both processes share
the machine; exit code 1 where a limit is passed.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np

from specflow.config.sampling import SamplingParams
from specflow.serving.load.cells import Cell
from specflow.serving.load.generator import Conditions, Endpoint, run_block
from specflow.serving.load.protocols import Asked, Generate

LIMIT = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[256])
    parser.add_argument("--every", type=float, default=0.05, help="seconds between chunks")
    parser.add_argument("--per-chunk", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--tokens", type=int, default=192, help="tokens of an answer")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    worst = max(measure(options, streams, per_chunk) for streams in options.streams for per_chunk in options.per_chunk)
    print(f"worst {worst:.2%}, {LIMIT:.0%} allowed")
    sys.exit(worst > LIMIT)


def measure(options: argparse.Namespace, streams: int, per_chunk: int) -> float:
    """The larger of the two shares, worst of the repeats."""
    port = _free_port()
    command = [sys.executable, str(Path(__file__).with_name("load_server.py")), "--port", str(port)]
    shape = ["--tokens", str(options.tokens), "--per-chunk", str(per_chunk), "--every", str(options.every)]
    server = subprocess.Popen([*command, *shape], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        return max(_once(f"http://127.0.0.1:{port}", options, streams, per_chunk) for _ in range(options.repeats))
    finally:
        server.kill()
        server.wait()


def _once(url: str, options: argparse.Namespace, streams: int, per_chunk: int) -> float:
    asked = tuple(Asked(id=str(i), kind="k", ids=(i,)) for i in range(streams))
    cell = Cell(dataset="k", sampling_name="greedy", sampling=SamplingParams(), asked=asked, concurrency=streams)
    endpoint = Endpoint(url=url, dialect=replace(Generate(), flush=None), timeout=600)
    conditions = Conditions(max_new_tokens=options.tokens, cache="shared")
    block = asyncio.run(run_block(endpoint, cell, conditions, mode="plain", repeat=0))
    assert not block.failures, block.failures[:3]
    sent = httpx.get(f"{url}/stamps", trust_env=False).json()
    own, true, late = [], [], []
    for sample in block.samples:
        stamps = sent[sample.id]
        own.append(sample.decode_seconds / sample.decode_tokens)
        true.append((stamps[-1] - stamps[0]) / (options.tokens - per_chunk))
        # Pieces may bring several chunks at once; the count says which was the last of them.
        late += [block.began + a.at - stamps[-(-(a.tokens or 0) // per_chunk) - 1] for a in sample.arrivals]
    mean = float(np.mean(true))
    error = abs(float(np.mean(own)) / mean - 1)
    lag = float(np.mean(late))
    generator = block.generator
    assert generator is not None
    print(
        f"{streams} streams, {per_chunk} tokens a chunk: time per token {1000 * mean:.3f} ms by the server's stamps "
        f"(script {1000 * options.every / per_chunk:.3f}), measured {error:.2%} off; chunks {1000 * lag:.2f} ms late "
        f"on average ({lag / options.every:.2%} of the time between two), p99 {1000 * np.percentile(late, 99):.1f} ms; "
        f"{generator.cpu_seconds / block.seconds:.0%} of a core",
        flush=True,
    )
    return max(error, lag / float(options.every))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
