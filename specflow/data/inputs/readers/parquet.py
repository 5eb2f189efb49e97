"""Parquet: chunks are runs of row groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specflow.data.inputs.readers.blank import Unreadable
from specflow.data.inputs.readers.nulls import without_nulls
from specflow.data.quarantine import DataError

BATCH_ROWS = 512


@dataclass(frozen=True, slots=True)
class GroupsChunk:
    path: Path
    groups: tuple[int, ...]

    def rows(self) -> Iterator[tuple[int, Any]]:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile

        number = 0
        try:
            with ParquetFile(self.path) as file:
                for batch in file.iter_batches(batch_size=BATCH_ROWS, row_groups=list(self.groups), use_threads=False):
                    for row in batch.to_pylist():
                        number += 1
                        yield number, without_nulls(row)
        except (ArrowException, OSError) as error:
            raise Unreadable(number + 1, f"not readable as Parquet ({error})") from error


def chunks(path: Path, *, chunk_bytes: int) -> Iterator[GroupsChunk]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            sizes = [file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups)]
    except (ArrowException, OSError) as error:
        raise DataError(f"{path}: not a Parquet file ({error})") from error
    groups: list[int] = []
    for group, _ in enumerate(sizes):
        groups.append(group)
        if sum(sizes[groups[0] : group + 1]) >= chunk_bytes:
            yield GroupsChunk(path, tuple(groups))
            groups = []
    if groups:
        yield GroupsChunk(path, tuple(groups))
