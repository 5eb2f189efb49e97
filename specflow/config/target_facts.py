"""What a target's own files say about its size, read without any library and before anything is loaded."""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

# https://github.com/ggml-org/ggml/blob/master/docs/gguf.md: format of each scalar by its type number.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """None where it cannot be known yet, as for a model on a hub."""

    layers: int | None = None
    """Decoder layers."""
    positions: int | None = None
    """Longest sequence in tokens."""
    hidden_size: int | None = None


def target_facts(source: str) -> TargetFacts:
    """Facts of ``target.source``; never raises: that a source is wrong is for the target stage to say."""
    try:
        if source.startswith("random:"):
            return TargetFacts(layers=4, positions=4096, hidden_size=64)
        if source.startswith("package:"):
            path = _package_file(source.removeprefix("package:"))
            return _from_gguf(path) if path else TargetFacts()
        path = Path(source).expanduser()
        if path.suffix == ".gguf":
            return _from_gguf(path)
        settings = json.loads((path / "config.json").read_text(encoding="utf-8"))
        return _from_settings(settings.get("text_config", settings))
    except (OSError, ValueError, AttributeError, ImportError, struct.error, LookupError):
        return TargetFacts()


def _from_settings(settings: Mapping[str, Any]) -> TargetFacts:
    return TargetFacts(
        layers=_count(settings.get("num_hidden_layers")),
        positions=_count(settings.get("max_position_embeddings")),
        hidden_size=_count(settings.get("hidden_size")),
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _package_file(reference: str) -> Path | None:
    module, _, name = reference.partition("/")
    spec = importlib.util.find_spec(module)
    folders = spec.submodule_search_locations if spec else None
    paths = (Path(folder) / name for folder in folders or ())
    return next((path for path in paths if path.is_file()), None)


def _from_gguf(path: Path) -> TargetFacts:
    """From the metadata at the start of the file, read up to the last of the three facts."""
    values: dict[str, Any] = {}
    facts: list[Any] = [None, None, None]
    with path.open("rb") as file:
        magic, _, _, pairs = struct.unpack("<4sIQQ", file.read(24))
        if magic != b"GGUF":
            raise ValueError(f"{path} is no GGUF file")
        for _ in range(pairs):
            name = _text(file)
            values[name] = _value(file, *_read(file, "I"))
            prefix = values.get("general.architecture")
            facts = [values.get(f"{prefix}.{fact}") for fact in ("block_count", "context_length", "embedding_length")]
            if None not in facts:
                break
    return TargetFacts(layers=_count(facts[0]), positions=_count(facts[1]), hidden_size=_count(facts[2]))


def _value(file: BinaryIO, kind: int) -> Any:
    """A scalar or a text; an array is skipped."""
    if kind == _STRING:
        return _text(file)
    if kind != _ARRAY:
        return _read(file, _SCALARS[kind])[0]
    inner, count = _read(file, "IQ")
    if inner in _SCALARS:
        file.seek(count * struct.calcsize(f"<{_SCALARS[inner]}"), 1)
        return None
    for _ in range(count):
        _value(file, inner)
    return None


def _text(file: BinaryIO) -> str:
    (length,) = _read(file, "Q")
    data = file.read(min(length, 1 << 24))
    if len(data) != length:
        raise ValueError("a text runs past the end of the file")
    return data.decode("utf-8", errors="replace")


def _read(file: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))
