"""Content keys: what an artifact is made from, as one SHA-256.

A key covers the stage, its code, the parameters that can change the result, the keys of the inputs and the
content of files outside the store. It never covers a location, a time, or the result itself, so every key of a
flow is known before anything runs.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

BUFFER_BYTES = 1 << 22


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces; ``ValueError`` for NaN and infinity, which have no equal."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def non_finite(value: Any, where: str = "") -> str | None:
    """Dotted place of the first NaN or infinity in a JSON value; none if all are finite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else where or "value"
    if isinstance(value, Mapping):
        children: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list | tuple):
        children = enumerate(value)
    else:
        return None
    found = (non_finite(child, f"{where}.{name}" if where else str(name)) for name, child in children)
    return next((place for place in found if place), None)


def hash_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes, read in blocks."""
    digest = hashlib.sha256()
    buffer = bytearray(BUFFER_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(view[:count])
    return digest.hexdigest()


@functools.lru_cache(maxsize=4096)
def _hash_unchanged(path: str, size: int, modified_ns: int) -> str:
    return hash_file(Path(path))


def hash_external(path: Path) -> str:
    """As ``hash_file``, read once per process while size and modification time stay the same."""
    status = path.stat()
    return _hash_unchanged(str(path), status.st_size, status.st_mtime_ns)


class ExternalFiles:
    """Files outside the store that a stage reads, by content."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._hashes = {path.resolve(): hash_external(path) for path in files}
        self._named: set[Path] = set()

    def content_of(self, path: Path) -> dict[str, Any] | None:
        """Content of a file, or of the stage's files under a directory; none if it is not one of them."""
        resolved = path.expanduser().resolve()
        if resolved in self._hashes:
            self._named.add(resolved)
            return {"sha256": self._hashes[resolved]}
        inside = {p: h for p, h in self._hashes.items() if p.is_relative_to(resolved)}
        if not inside:
            return None
        self._named.update(inside)
        return {"files": {p.relative_to(resolved).as_posix(): h for p, h in sorted(inside.items())}}

    def unnamed(self) -> list[list[str]]:
        """Name and hash of the files that no parameter points at (for example inside an installed package)."""
        return sorted([p.name, h] for p, h in self._hashes.items() if p not in self._named)


def _in_key(field: FieldInfo) -> bool:
    extra = field.json_schema_extra
    return not (isinstance(extra, Mapping) and extra.get("in_key") is False)


def _field(field: FieldInfo, value: Any, files: ExternalFiles) -> Any:
    reduced, extra = _reduce(value, files), field.json_schema_extra
    if isinstance(value, Path) and isinstance(extra, Mapping) and extra.get("name_in_key"):
        return {"name": value.name, "content": reduced}
    return reduced


def _reduce(value: Any, files: ExternalFiles) -> Any:
    """JSON value of a parameter, without fields that are not in the key and with content in place of paths."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields.items()
        return {name: _field(field, getattr(value, name), files) for name, field in fields if _in_key(field)}
    if isinstance(value, Mapping):
        return {str(name): _reduce(child, files) for name, child in value.items()}
    if isinstance(value, Path):
        return files.content_of(value) or value.as_posix()
    if isinstance(value, str):
        # A model directory may be given as text; only an absolute path can be told from a name.
        return (files.content_of(Path(value)) if value.startswith("/") else None) or value
    if isinstance(value, set | frozenset):
        return sorted(_reduce(child, files) for child in value)
    if isinstance(value, Sequence):
        return [_reduce(child, files) for child in value]
    return value


def key_parameters(params: BaseModel, files: Iterable[Path] = ()) -> dict[str, Any]:
    """The part of ``params`` that is in the key. Raises ``FileNotFoundError`` for a missing external file."""
    external = ExternalFiles(files)
    reduced: dict[str, Any] = _reduce(params, external)
    unnamed = external.unnamed()
    return {**reduced, "external_files": unnamed} if unnamed else reduced


def content_key(
    *,
    kind: str,
    stage: str,
    code_version: str,
    parameters: Mapping[str, Any],
    inputs: Mapping[str, Sequence[str]],
    item: str | None = None,
) -> str:
    """Hex SHA-256 that names the artifact. ``item`` counts because a stage can see it and write it down."""
    description = {
        "kind": kind,
        "stage": stage,
        "code": code_version,
        "parameters": parameters,
        "inputs": {name: sorted(keys) for name, keys in inputs.items()},
        "item": item,
    }
    return hashlib.sha256(canonical_json(description).encode()).hexdigest()
