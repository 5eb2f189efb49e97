"""An export as read back from disk, and what can be wrong with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing wrong with an export."""

    check: str
    where: str
    found: str
    expected: str

    def __str__(self) -> str:
        return f"[{self.check}] {self.where}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An export as read back from disk, beside what it must agree with."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    trained: Mapping[str, Tensor]
    """The trained weights, uncast."""
    geometry: Mapping[str, Any]
    """The drafter's own config."""
    manifest: Mapping[str, Any]
    target: Mapping[str, Any]
    """The target's Hugging Face config."""
    dtype: str
    token_ids: Mapping[str, int] | None = None
    """Ids of the target's tokens by name; none: not checked."""


Rule = Callable[[Draft], Iterator[Finding]]


def tensor_hash(tensor: Tensor) -> str:
    """sha256 of the values, dtype and shape included."""
    import torch

    head = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(head + data.tobytes()).hexdigest()


def read_draft(
    directory: Path,
    *,
    trained: Mapping[str, Tensor],
    geometry: Mapping[str, Any],
    manifest: Mapping[str, Any],
    target: Mapping[str, Any],
    dtype: str,
    token_ids: Mapping[str, int] | None = None,
) -> Draft:
    """Read ``config.json`` and ``model.safetensors`` of an export."""
    from safetensors.torch import load_file

    return Draft(
        config=json.loads((directory / "config.json").read_text(encoding="utf-8")),
        tensors=load_file(str(directory / "model.safetensors")),
        trained=trained,
        geometry=geometry,
        manifest=manifest,
        target=target,
        dtype=dtype,
        token_ids=token_ids,
    )
