"""Capture to the store against the bare forward pass of the same batches; prints their ratio.

    python benchmarks/capture.py TARGET_DIRECTORY [TOKENS_DIRECTORY] [--workers 2 --workers-threads 1]

Both sides run the same batches in turn, shard by shard. The forward side computes the layers and
throws them away: no features kept, no store. Goals: a ratio of at least 0.9, and less than a tenth of
the computed tokens padding. Another figure tells what sharing prefixes saves. Without a tokens artifact
random ids are used, which share nothing. With ``--workers`` the same shards are then made by one process
and by several, start and probes left out of the time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from specflow.config.capture import CaptureParams
from specflow.data.documents import TokenDocument, read_documents
from specflow.features.capture import Capturer
from specflow.features.contract import FINGERPRINT_FIELDS, FeatureContract
from specflow.features.document import Document
from specflow.features.engine import CaptureJob
from specflow.features.making import ShardTask
from specflow.features.plan import Batch, computed_tokens, plan_shards
from specflow.features.store import FeatureWriter
from specflow.features.workers import make_shards
from specflow.targets.target import Target


def _ignore(_: int) -> None: ...


def main() -> None:
    options = _options()
    target = Target.load(options.target, precision=options.precision, threads=options.threads)
    layer_ids = tuple(sorted({target.num_layers * n // (options.layers + 1) for n in range(1, options.layers + 1)}))
    documents = _documents(options, target.vocab_size)
    shards = plan_shards(documents, batch_tokens=options.batch_tokens, shard_tokens=options.shard_tokens)
    fingerprint = dict.fromkeys(FINGERPRINT_FIELDS, "benchmark")
    contract = FeatureContract.for_target(
        fingerprint, layer_ids=layer_ids, hidden_size=target.hidden_size, precision=target.precision
    )
    tokens = [sum(len(documents[i]) for b in shard for i in b.documents) for shard in shards]
    seconds = {"forward": 0.0, "capture": 0.0}
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        writer = FeatureWriter(Path(scratch), contract)
        forward = Capturer(target, (), documents)
        capturer = Capturer(target, layer_ids, documents)
        forward.forward(shards[0][0])  # warm up
        for number, shard in enumerate(shards):
            sides: list[tuple[str, Callable[[], None]]] = [
                ("forward", lambda shard=shard: _forward(forward, shard)),  # type: ignore[misc]
                ("capture", lambda n=number, shard=shard: _capture(capturer, writer, n, shard, documents)),  # type: ignore[misc]
            ]
            for name, side in sides if number % 2 else sides[::-1]:
                begin = time.perf_counter()
                side()
                seconds[name] += time.perf_counter() - begin
    total = sum(tokens)
    padded, padding = computed_tokens(documents, shards)
    print(f"{len(documents)} documents, {total} tokens, {padded} computed ({padding / padded:.1%} padding, goal 10%)")
    print(f"precision {target.precision}, {target.threads} threads, layers {list(layer_ids)}")
    for name, spent in seconds.items():
        print(f"{name:8s} {total / spent:9.0f} tokens/s")
    print(f"ratio capture / forward: {seconds['forward'] / seconds['capture']:.3f} (goal 0.9)")
    print(f"tokens computed / tokens stored with shared prefixes: {padded / total:.3f}")
    if options.workers > 1:
        tasks = [_task(n, shard, documents) for n, shard in enumerate(shards)]
        for workers, threads in ((1, target.threads), (options.workers, options.workers_threads)):
            start, spent = _made_by(workers, threads, tasks, contract, options)
            print(f"workers {workers}, {threads} threads each: {total / spent:.0f} tokens/s, ready after {start:.1f} s")


def _forward(capturer: Capturer, shard: Sequence[Batch]) -> None:
    for batch in shard:
        capturer.forward(batch)


def _capture(
    capturer: Capturer, writer: FeatureWriter, number: int, shard: Sequence[Batch], documents: list[list[int]]
) -> None:
    rows = [
        Document(
            index=i,
            split="train",
            kind="benchmark",
            token_ids_T=torch.tensor(documents[i]),
            supervised_T=torch.ones(len(documents[i]), dtype=torch.bool),
            features_TKH=captured.features_TKH,
            last_hidden_TH=captured.last_hidden_TH,
        )
        for batch in shard
        for i, captured in zip(batch.documents, capturer.run(batch), strict=True)
    ]
    writer.write(number, rows)  # in the stage a thread writes while the next shard is computed


def _task(number: int, shard: Sequence[Batch], documents: list[list[int]]) -> ShardTask:
    return ShardTask(
        number=number,
        batches=shard,
        documents={
            i: TokenDocument(
                id=str(i),
                split="train",
                kind="benchmark",
                ids=documents[i],
                supervised=[True] * len(documents[i]),
                prompt_length=0,
                finish="length",
            )
            for batch in shard
            for i in batch.documents
        },
    )


def _made_by(
    workers: int, threads: int, tasks: list[ShardTask], contract: FeatureContract, options: argparse.Namespace
) -> tuple[float, float]:
    """Seconds until every process asked for work, and from then on until the last shard was committed."""
    asked: list[float] = []

    def timed() -> Iterator[ShardTask]:
        for task in tasks:
            asked.append(time.perf_counter())
            yield task

    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        job = CaptureJob(
            target=options.target,
            root=Path(scratch),
            contract=contract,
            params=CaptureParams(layer_ids=contract.layer_ids, probe_rows=0),
            precision=contract.precision,
            threads=threads,
            device="cpu",
        )
        begin = time.perf_counter()
        for _ in make_shards(job, timed(), workers=workers, logs=Path(scratch), advance=_ignore, retried=_ignore):
            pass
        end = time.perf_counter()
    return asked[workers - 1] - begin, end - asked[workers - 1]


def _documents(options: argparse.Namespace, vocab_size: int) -> list[list[int]]:
    if options.tokens:
        return [d.ids for d in read_documents(options.tokens)][: options.documents]
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(60, 260, (options.documents,), generator=generator).tolist()
    return [torch.randint(0, vocab_size, (n,), generator=generator).tolist() for n in lengths]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("tokens", type=Path, nargs="?")
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--workers-threads", type=int, default=1)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--shard-tokens", type=int, default=2048)
    parser.add_argument("--scratch", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
