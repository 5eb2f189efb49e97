"""The feature store against numpy.save, a file per document, and codecs; prints ratios.

    taskset -c 0 python benchmarks/features.py [FEATURES_DIRECTORY]

Documents are those of a features artifact, whose values codecs are judged by; without one they are random. Everything
is read from the page cache and by one thread. Reading a document copies it out, as training does. Every figure is the
best of some rounds in which the sides take turns. Goals: sequential reading at 1 GB/s, random at 0.6 of it, writing at
0.8 of numpy.save, both without waiting for the disk.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from collections import defaultdict
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
Times = dict[str, float]


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
        writing = _best(_writers(root, documents, shards, contract), options.rounds)
        _print("write", writing, size, against="numpy.save of joined arrays")
        synced = ("store, on disk", "numpy.save, on disk")
        print(f"  both waiting for the disk: {writing[synced[1]] / writing[synced[0]]:.2f} of numpy.save")
        print(f"  (checksums of it: {_checksum_rate(documents):.1f} GB/s)")
        reading = _best(_readers(root, documents, options.seed), options.rounds)
        _print("read", reading, size, against="store, in order")
        ratio = reading["store, in order"] / reading["store, random"]
        print(f"  random / sequential: {ratio:.2f} (goal 0.6)")
        _codecs(root, documents, options)


def _writers(
    root: Path, documents: Sequence[Document], shards: Sequence[Sequence[Document]], contract: FeatureContract
) -> dict[str, Callable[[], None]]:
    def store(name: str, form: str, *, sync: bool) -> None:
        layout = "none" if form == "bfloat16" else "bfloat16_per_token_and_layer"
        _fresh(root / name)
        writer = FeatureWriter(root / name, replace(contract, dtype=form, scale_layout=layout), sync=sync)
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

    def numpy_save(*, sync: bool) -> None:
        _fresh(root / "numpy")
        for number, arrays in enumerate(joined):
            for name, array in arrays.items():
                with (root / "numpy" / f"{number}-{name}.npy").open("wb") as file:
                    np.save(file, array)
                    if sync:
                        file.flush()
                        os.fsync(file.fileno())

    def each(name: str, save: Callable[[dict[str, Any], Path], None]) -> None:
        _fresh(root / name)
        for d in documents:
            save({"features": d.features_TKH, "last_hidden": d.last_hidden_TH}, root / name / str(d.index))

    return {
        "numpy.save of joined arrays": lambda: numpy_save(sync=False),
        **{f"store, {form}": lambda form=form: store(form, form, sync=False) for form in FORMS},  # type: ignore[misc]
        "numpy.save, on disk": lambda: numpy_save(sync=True),
        "store, on disk": lambda: store("synced", "bfloat16", sync=True),
        "torch.save per document": lambda: each("torch", torch.save),
        "safetensors per document": lambda: each("safetensors", save_file),
    }


def _readers(root: Path, documents: Sequence[Document], seed: int) -> dict[str, Callable[[], None]]:
    order = [d.index for d in documents]
    mixed = random.Random(seed).sample(order, len(order))
    readers = {form: FeatureReader(root / form) for form in FORMS}

    def store(form: str, indices: Sequence[int]) -> None:
        for index in indices:
            document = readers[form].document(index)
            if form == "bfloat16":  # mapped; the others are copies already
                document.features_TKH.clone()
                document.last_hidden_TH.clone()

    def files(load: Callable[[Path], dict[str, torch.Tensor]], indices: Sequence[int], name: str) -> None:
        for index in indices:
            for tensor in load(root / name / str(index)).values():
                tensor.clone() if name == "safetensors" else tensor

    sides: dict[str, Callable[[], None]] = {
        "store, in order": lambda: store("bfloat16", order),
        "store, random": lambda: store("bfloat16", mixed),
        "store, random, fp8": lambda: store("float8_e4m3fn", mixed),
        "store, random, int8": lambda: store("int8", mixed),
        "torch.load, random": lambda: files(torch.load, mixed, "torch"),
        "safetensors, random": lambda: files(load_file, mixed, "safetensors"),
        "open and verify": lambda: FeatureReader(root / "bfloat16") and None,
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


def _best(sides: dict[str, Callable[[], None]], rounds: int) -> Times:
    times: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for name, side in list(sides.items())[:: 1 if number % 2 else -1]:
            begin = time.perf_counter()
            side()
            times[name].append(time.perf_counter() - begin)
    return {name: min(times[name]) for name in sides}


def _print(what: str, times: Times, size: int, *, against: str) -> None:
    print(f"{what}: GB/s of bfloat16 values, ratio to {against}")
    for name, seconds in times.items():
        print(f"  {name:28s} {size / seconds / 1e9:6.2f}  {times[against] / seconds:5.2f}")


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
