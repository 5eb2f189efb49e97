"""Tensors and plain values in one safetensors file: there whole or not at all, and checked when read."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

SUFFIX = ".safetensors"


class DamagedFile(Exception):
    """A file that is not what was written; the message says in what."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Written beside ``path``, fsynced and renamed; the file's header carries ``values`` and a checksum per tensor."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    sums = {name: _checksum(value) for name, value in plain.items()}
    partial = path.with_suffix(".partial")
    save_file(plain, partial, metadata={"values": json.dumps(dict(values)), "crc32": json.dumps(sums)})
    _sync(partial)
    partial.replace(path)
    _sync(path.parent)  # a rename lives in the directory


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Raises ``DamagedFile`` unless every byte is as written."""
    try:
        with safe_open(path, framework="pt") as opened:
            header = opened.metadata()
            values: dict[str, Any] = json.loads(header["values"])
            sums: dict[str, int] = json.loads(header["crc32"])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedFile(f"cannot be read: {error}") from error
    different = sorted(
        n for n in tensors.keys() | sums.keys() if n not in tensors or sums.get(n) != _checksum(tensors[n])
    )
    if different:
        raise DamagedFile(f"{len(different)} tensors differ from what was written, first {different[0]!r}")
    return tensors, values


def read_values(path: Path) -> dict[str, Any]:
    """The values alone, from the file's header; raises ``DamagedFile``."""
    try:
        with safe_open(path, framework="pt") as opened:
            found: dict[str, Any] = json.loads(opened.metadata()["values"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedFile(f"cannot be read: {error}") from error
    return found


def _checksum(tensor: Tensor) -> int:
    import torch

    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
