"""Tensors and plain values in one safetensors file: there whole or not at all, and checked when read."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

SUFFIX = ".safetensors"
VALUES, CHECKSUMS = "values", "crc32"


class DamagedFile(Exception):
    """A file that is not what was written; the message says in what."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Written beside ``path``, fsynced and renamed; the file's header carries ``values`` and a checksum per tensor."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = json.dumps(dict(values))
    sums = {name: _checksum(value) for name, value in plain.items()} | {VALUES: zlib.crc32(text.encode())}
    partial = path.with_suffix(".partial")
    save_file(plain, partial, metadata={VALUES: text, CHECKSUMS: json.dumps(sums)})
    _sync(partial)
    partial.replace(path)
    _sync(path.parent)  # a rename lives in the directory


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Raises ``DamagedFile`` unless every byte is as written."""
    with _opened(path) as (opened, values, sums):
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
        found = {name: _checksum(value) for name, value in tensors.items()}
    different = sorted(n for n in found.keys() | sums.keys() if found.get(n) != sums.get(n))
    if different:
        raise DamagedFile(f"{len(different)} tensors differ from what was written, first {different[0]!r}")
    return tensors, values


def read_values(path: Path) -> dict[str, Any]:
    """The values alone, from the file's header; raises ``DamagedFile``."""
    with _opened(path) as (_, values, _):
        return values


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any], dict[str, int]]]:
    """The open file, its values, and the checksums of its tensors."""
    try:
        with safe_open(path, framework="pt") as opened:
            header = opened.metadata()
            sums: dict[str, int] = json.loads(header[CHECKSUMS])
            if sums.pop(VALUES) != zlib.crc32(header[VALUES].encode()):
                raise ValueError("the header differs from what was written")
            yield opened, json.loads(header[VALUES]), sums
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFile(f"cannot be read: {error}") from error


def _checksum(tensor: Tensor) -> int:
    octets: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return zlib.crc32(octets)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
