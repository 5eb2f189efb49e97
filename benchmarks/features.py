"""The feature store against numpy.save, a file per document, and codecs; prints ratios.

    taskset -c 0 python benchmarks/features.py [FEATURES_DIRECTORY]

Documents are those of a features artifact, whose values codecs are judged by; without one they are random. Everything
is read from the page cache and by one thread. Reading a document copies it out, as training does. The sides take turns
for some rounds: a speed is the median of them, a ratio the median of the rounds' ratios. What an earlier round wrote is
removed, and the disk is idle, before a clock starts. Goals: sequential reading at 1 GB/s, random at 0.6 of it, writing
at 0.8 of numpy.save, where either both wait for the disk or neither does.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from numcodecs import zarr3  # noqa: F401  registers codecs
from safetensors.torch import load_file, save_file
from zarr.codecs import BloscCodec, ZstdCodec

from specflow.features.contract import FINGERPRINT_FIELDS, FeatureContract
from specflow.features.document import Document
from specflow.features.shard import checksum
from specflow.features.store import FeatureReader, FeatureWriter

FORMS = ("bfloat16", "float8_e4m3fn", "int8")
TORCH, SAFETENSORS = "torch.save per document", "safetensors per document"
Times = dict[str, list[float]]
"""Seconds of each side, by round."""


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    documents = _documents(options)
    contract = _contract(documents)
    size = sum(d.features_TKH.nbytes + d.last_hidden_TH.nbytes for d in documents)
    shards = _shards(documents, options.shard_tokens)
    tokens = sum(len(d.token_ids_T) for d in documents)
    print(f"{len(documents)} documents, {tokens} tokens, {size / 1e6:.0f} MB in bfloat16, {len(shards)} shards")
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        root = Path(scratch)
        writing = _timed(_writers(documents, shards, contract), options.rounds, places=root)
        _print("write", writing, size, against="numpy.save of joined arrays")
        synced = _ratio(writing, "numpy.save, on disk", "store, on disk")
        print(f"  both waiting for the disk: {synced:.2f} of numpy.save")
        print(f"  (checksums of it: {_checksum_rate(documents):.1f} GB/s)")
        reading = _timed(_readers(root, documents, options.seed), options.rounds)
        _print("read", reading, size, against="store, in order")
        print(f"  random / sequential: {_ratio(reading, 'store, in order', 'store, random'):.2f} (goal 0.6)")
        _codecs(root, documents, options)


def _writers(
    documents: Sequence[Document], shards: Sequence[Sequence[Document]], contract: FeatureContract
) -> dict[str, Callable[[Path], None]]:
    """Each writes all documents into an empty directory."""

    def store(place: Path, form: str, *, sync: bool) -> None:
        layout = "none" if form == "bfloat16" else "bfloat16_per_token_and_layer"
        writer = FeatureWriter(place, replace(contract, dtype=form, scale_layout=layout), sync=sync)
        for number, shard in enumerate(shards):
            writer.write(number, shard)
        writer.finish(len(shards))

    joined = [
        {
            "features": torch.cat([d.features_TKH for d in shard]).view(torch.uint16).numpy(),
            "last_hidden": torch.cat([d.last_hidden_TH for d in shard]).view(torch.uint16).numpy(),
        }
        for shard in shards
    ]

    def numpy_save(place: Path, *, sync: bool) -> None:
        for number, arrays in enumerate(joined):
            for name, array in arrays.items():
                with (place / f"{number}-{name}.npy").open("wb") as file:
                    np.save(file, array)
                    if sync:
                        file.flush()
                        os.fsync(file.fileno())

    def each(place: Path, save: Callable[[dict[str, Any], Path], None]) -> None:
        for d in documents:
            save({"features": d.features_TKH, "last_hidden": d.last_hidden_TH}, place / str(d.index))

    return {
        "numpy.save of joined arrays": lambda place: numpy_save(place, sync=False),
        **{_stored(form): lambda place, form=form: store(place, form, sync=False) for form in FORMS},  # type: ignore[misc]
        "numpy.save, on disk": lambda place: numpy_save(place, sync=True),
        "store, on disk": lambda place: store(place, "bfloat16", sync=True),
        TORCH: lambda place: each(place, torch.save),
        SAFETENSORS: lambda place: each(place, save_file),
    }


def _readers(root: Path, documents: Sequence[Document], seed: int) -> dict[str, Callable[[], None]]:
    order = [d.index for d in documents]
    mixed = random.Random(seed).sample(order, len(order))
    readers = {form: FeatureReader(_place(root, _stored(form))) for form in FORMS}

    def store(form: str, indices: Sequence[int]) -> None:
        for index in indices:
            document = readers[form].document(index)
            if form == "bfloat16":  # mapped; the others are copies already
                document.features_TKH.clone()
                document.last_hidden_TH.clone()

    def files(load: Callable[[Path], dict[str, torch.Tensor]], indices: Sequence[int], name: str) -> None:
        for index in indices:
            for tensor in load(_place(root, name) / str(index)).values():
                tensor.clone() if name == SAFETENSORS else tensor

    sides: dict[str, Callable[[], None]] = {
        "store, in order": lambda: store("bfloat16", order),
        "store, random": lambda: store("bfloat16", mixed),
        "store, random, fp8": lambda: store("float8_e4m3fn", mixed),
        "store, random, int8": lambda: store("int8", mixed),
        "torch.load, random": lambda: files(torch.load, mixed, TORCH),
        "safetensors, random": lambda: files(load_file, mixed, SAFETENSORS),
        "open and verify": lambda: FeatureReader(_place(root, _stored("bfloat16"))) and None,
    }
    return sides


def _codecs(root: Path, documents: Sequence[Document], options: argparse.Namespace) -> None:
    """One Zarr array of all rows: the whole as a chunk where it is plain, else chunks of some rows."""
    rows = torch.cat([d.features_TKH for d in documents]).view(torch.uint16).numpy()
    offsets = np.cumsum([0, *(len(d.features_TKH) for d in documents)])
    mixed = random.Random(options.seed).sample(range(len(documents)), min(len(documents), 200))
    codecs: dict[str, Any] = {
        "none": None,
        "zstd 1": ZstdCodec(level=1),
        "lz4, bytes shuffled": BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"),
        "zstd 1, bytes shuffled": BloscCodec(cname="zstd", clevel=1, shuffle="shuffle"),
        "zstd 5, bytes shuffled": BloscCodec(cname="zstd", clevel=5, shuffle="shuffle"),
    }
    print(f"codecs of Zarr, chunks of {options.chunk_rows} rows; a document is read by its slice")
    for pipeline in _pipelines():
        with zarr.config.set({"codec_pipeline.path": pipeline, "threading.max_workers": 1, "async.concurrency": 1}):
            for name, codec in codecs.items():
                place = _fresh(root / "codec")
                begin = time.perf_counter()
                array = zarr.create_array(
                    store=place,
                    shape=rows.shape,
                    dtype=rows.dtype,
                    chunks=(options.chunk_rows, *rows.shape[1:]),
                    compressors=codec,
                )
                array[...] = rows
                write = time.perf_counter() - begin
                begin = time.perf_counter()
                np.asarray(array[...])
                read = time.perf_counter() - begin
                begin = time.perf_counter()
                got = sum(np.asarray(array[offsets[i] : offsets[i + 1]]).nbytes for i in mixed)
                random_read = time.perf_counter() - begin
                stored = sum(p.stat().st_size for p in place.rglob("*") if p.is_file())
                print(
                    f"  {name:24s} {pipeline.partition('.')[0]:6s} size {stored / rows.nbytes:.3f}, write "
                    f"{rows.nbytes / write / 1e9:.2f}, read {rows.nbytes / read / 1e9:.2f}, "
                    f"random documents {got / random_read / 1e9:.2f} GB/s"
                )


def _pipelines() -> list[str]:
    found = ["zarr.core.codec_pipeline.BatchedCodecPipeline"]
    try:
        import zarrs  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        print("zarrs is not installed: its codec pipeline is left out")
        return found
    return [*found, "zarrs.ZarrsCodecPipeline"]


def _stored(form: str) -> str:
    return f"store, {form}"


def _place(root: Path, side: str) -> Path:
    return root / "".join(c if c.isalnum() else "-" for c in side)


def _timed(sides: dict[str, Callable[..., None]], rounds: int, *, places: Path | None = None) -> Times:
    """With ``places`` each side is given an empty directory there."""
    times: Times = {name: [] for name in sides}
    for number in range(rounds):
        for name, side in list(sides.items())[:: 1 if number % 2 else -1]:
            given = [_fresh(_place(places, name))] if places else []
            if places:
                os.sync()
            begin = time.perf_counter()
            side(*given)
            times[name].append(time.perf_counter() - begin)
    return times


def _ratio(times: Times, one: str, other: str) -> float:
    """Time of ``one`` over that of ``other``: how many times as fast the other is."""
    return statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))


def _print(what: str, times: Times, size: int, *, against: str) -> None:
    print(f"{what}: GB/s of bfloat16 values, ratio to {against}")
    for name, seconds in times.items():
        print(f"  {name:28s} {size / statistics.median(seconds) / 1e9:6.2f}  {_ratio(times, against, name):5.2f}")


def _checksum_rate(documents: Sequence[Document]) -> float:
    buffers = [d.features_TKH.view(torch.uint8).numpy() for d in documents]
    begin = time.perf_counter()
    checksum(np.ascontiguousarray(b) for b in buffers)
    return sum(b.nbytes for b in buffers) / (time.perf_counter() - begin) / 1e9


def _fresh(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def _shards(documents: Sequence[Document], tokens: int) -> list[list[Document]]:
    shards: list[list[Document]] = [[]]
    for document in documents:
        if shards[-1] and sum(len(d.token_ids_T) for d in shards[-1]) + len(document.token_ids_T) > tokens:
            shards.append([])
        shards[-1].append(document)
    return shards


def _documents(options: argparse.Namespace) -> list[Document]:
    if options.features:
        reader = FeatureReader(options.features)
        found = [reader.document(i) for i in range(min(len(reader), options.documents))]
        return [
            replace(d, index=i, features_TKH=d.features_TKH.clone(), last_hidden_TH=d.last_hidden_TH.clone())
            for i, d in enumerate(found)
        ]
    generator = torch.Generator().manual_seed(options.seed)
    lengths = torch.randint(60, 400, (options.documents,), generator=generator).tolist()
    return [
        Document(
            index=i,
            split="train",
            kind="benchmark",
            token_ids_T=torch.zeros(n, dtype=torch.int64),
            supervised_T=torch.ones(n, dtype=torch.bool),
            features_TKH=torch.randn(n, options.layers, options.hidden, generator=generator).bfloat16(),
            last_hidden_TH=torch.randn(n, options.hidden, generator=generator).bfloat16(),
        )
        for i, n in enumerate(lengths)
    ]


def _contract(documents: Sequence[Document]) -> FeatureContract:
    _, layers, hidden = documents[0].features_TKH.shape
    fingerprint = dict.fromkeys(FINGERPRINT_FIELDS, "benchmark")
    return FeatureContract.for_target(fingerprint, layer_ids=tuple(range(layers)), hidden_size=hidden, precision="fp32")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="?")
    parser.add_argument("--documents", type=int, default=500)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--shard-tokens", type=int, default=16384)
    parser.add_argument("--chunk-rows", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
