"""Data sets of Hugging Face ``datasets``: of the hub, saved to a directory, or a directory of data files.

What was saved lies on the disk as it is in memory, and is cut into ranges of rows. Everything else is streamed,
and cut as ``datasets`` cuts it: by files and, where it can, by groups of rows in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specflow.config.inputs import PromptSource
from specflow.data.inputs.readers.blank import Unreadable
from specflow.data.inputs.readers.nulls import without_nulls
from specflow.data.quarantine import DataError

COMMIT = re.compile("[0-9a-f]{40}")
RANGE_ROWS = 8192
BATCH_ROWS = 256
SAVED = ("state.json", "dataset_dict.json")


@dataclass(frozen=True, slots=True)
class RangeChunk:
    """Rows of a saved data set."""

    path: Path
    split: str
    start: int
    end: int

    def rows(self) -> Iterator[tuple[int, Any]]:
        dataset = _saved(self.path, self.split)
        number = 0
        for start in range(self.start, self.end, BATCH_ROWS):
            columns = dataset[start : min(start + BATCH_ROWS, self.end)]
            for values in zip(*columns.values(), strict=True):
                number += 1
                yield number, without_nulls(dict(zip(columns, values, strict=True)))


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """One shard of a streamed data set."""

    dataset: Any
    """``datasets.IterableDataset``: what to read and where, none of its rows."""

    def rows(self) -> Iterator[tuple[int, Any]]:
        number = 0
        try:
            for row in self.dataset:
                number += 1
                yield number, without_nulls(row)
        except Exception as error:  # whatever the file systems and parsers of datasets raise
            raise Unreadable(number + 1, f"datasets cannot read it: {type(error).__name__}: {error}") from error


def resolved(source: PromptSource) -> PromptSource:
    """The source at the commit that its revision (none: the newest) stands for now; others are as they are.

    Raises :class:`DataError` with what the hub said.
    """
    if source.dataset is None or Path(source.dataset).exists() or COMMIT.fullmatch(source.revision or ""):
        return source
    from huggingface_hub import HfApi

    try:
        commit = HfApi().dataset_info(source.dataset, revision=source.revision).sha
    except Exception as error:  # whatever its network raises
        raise DataError(
            f"{source.place}: the hub does not tell the commit of its revision {source.revision or 'main'}: "
            f"{type(error).__name__}: {error}. With a commit as `revision` it is not asked"
        ) from error
    return source.model_copy(update={"revision": commit})


def chunks(source: PromptSource) -> Iterator[RangeChunk | StreamChunk]:
    """Raises :class:`DataError` with what ``datasets`` said."""
    if source.dataset is not None and Path(source.dataset).exists():
        # datasets would read it, and its content would not be part of any key.
        raise DataError(
            f"{source.dataset}: `dataset` names one of the hub, and this is a directory here; give it as `path`"
        )
    try:
        if source.path is not None and any((source.path / name).is_file() for name in SAVED):
            count = len(_saved(source.path, source.split))
            for start in range(0, count, RANGE_ROWS):
                yield RangeChunk(source.path, source.split, start, min(start + RANGE_ROWS, count))
        else:
            dataset = _streamed(source)
            for index in range(dataset.num_shards):
                yield StreamChunk(dataset.shard(dataset.num_shards, index))
    except Exception as error:  # datasets raises what its file systems and parsers raise
        raise DataError(f"{source.place}: datasets cannot read it: {type(error).__name__}: {error}") from error


def _saved(path: Path, split: str) -> Any:
    from datasets import DatasetDict, load_from_disk

    loaded = load_from_disk(str(path))
    if not isinstance(loaded, DatasetDict):
        return loaded
    if split not in loaded:
        raise KeyError(f"no split {split}; there are {', '.join(map(str, loaded))}")
    return loaded[split]


def _streamed(source: PromptSource) -> Any:
    from datasets import load_dataset

    dataset = load_dataset(
        str(source.path or source.dataset), source.name, split=source.split, revision=source.revision, streaming=True
    )
    return dataset.reshard()
