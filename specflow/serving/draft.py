"""A draft directory as read from disk, and what can be wrong with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS, MANIFEST = "config.json", "model.safetensors", "manifest.json"
TOKEN_MAP = "hot_tokens.pt"
"""The target's tokens that EAGLE can propose: a list of ids, which a server is told to read; read as a tensor here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing wrong with an export."""

    check: str
    where: str
    found: str
    expected: str

    def __str__(self) -> str:
        return f"[{self.check}] {self.where}: expected {self.expected}, found {self.found}"


class NotKnown(Exception):
    """A rule needs what is not here, so that it cannot judge."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not known here")
        self.what = what


class Unknown(Mapping[str, Any]):
    """Stands for what does not come with a directory: whoever looks into it gets :class:`NotKnown`."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getitem__(self, key: str) -> Any:
        raise NotKnown(self._what)

    def __iter__(self) -> Iterator[str]:
        raise NotKnown(self._what)

    def __len__(self) -> int:
        raise NotKnown(self._what)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


MANIFEST_UNKNOWN = Unknown("our manifest")
GEOMETRY_UNKNOWN = Unknown("the drafter's own config")
TRAINED_UNKNOWN = Unknown("the trained drafter")
TARGET_UNKNOWN = Unknown("the target")
FINGERPRINT_UNKNOWN = Unknown("the target's fingerprint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A draft directory, beside what it must agree with. Each of the mappings may be :class:`Unknown`."""

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
    fingerprint: Mapping[str, str] = FINGERPRINT_UNKNOWN
    """Hashes of the target's files."""
    directory: Path | None = None
    """Where it was read from."""

    @property
    def ours(self) -> bool:
        """Whether it was exported here, so that every key and name in it is known."""
        return not isinstance(self.manifest, Unknown)

    def require_ours(self) -> None:
        """:class:`NotKnown` where it was not exported here."""
        if not self.ours:
            len(self.manifest)


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
    fingerprint: Mapping[str, str] = FINGERPRINT_UNKNOWN,
) -> Draft:
    """Read ``config.json`` and the tensors of a directory. Raises ``ValueError`` where they cannot be read."""
    return Draft(
        directory=directory,
        config=read_json(directory / CONFIG),
        tensors=read_tensors(directory),
        trained=trained,
        geometry=geometry,
        manifest=manifest,
        target=target,
        dtype=dtype,
        token_ids=token_ids,
        fingerprint=fingerprint,
    )


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """The tensors of every ``.safetensors`` file, of which public drafters may have several, and of a token map."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        raise ValueError(f"{directory}: expected {WEIGHTS}, found no .safetensors file")
    tensors: dict[str, Tensor] = {}
    for path in paths:
        try:
            tensors |= load_file(str(path))
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path}: expected a whole safetensors file, found: {error}") from error
    if (directory / TOKEN_MAP).exists():
        tensors[TOKEN_MAP] = _token_map(directory / TOKEN_MAP)
    return tensors


def _token_map(path: Path) -> Tensor:
    import torch

    try:
        return torch.as_tensor(torch.load(path, weights_only=True), dtype=torch.int64)
    except (OSError, RuntimeError, TypeError, ValueError, UnpicklingError) as error:
        raise ValueError(f"{path}: expected a list of token ids, found: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ``ValueError`` naming the file where there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: expected a JSON object, found: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value
