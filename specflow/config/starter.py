"""A commented configuration to start from, written from the models' own descriptions."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from specflow.config.fields import models_in, type_name
from specflow.config.root import Config
from specflow.config.target_facts import target_facts

WIDTH = 100
CAPTURED = 3
"""Layers captured by a starter configuration: spread over the target's depth."""


def starter(target: str, *, layers: int | None = None) -> str:
    """YAML for ``target`` with every key: those that need an answer filled in, the others commented with defaults."""
    known = layers or count_layers(target)
    values: dict[str, Any] = {
        "name": "my-drafter",
        "target": {"source": target},
        "regenerate": {
            "train": [{"path": "prompts/train.jsonl", "kind": "service"}],
            "heldout": [{"path": "prompts/heldout.jsonl", "kind": "service"}],
        },
        "capture": {"layer_ids": spread_layers(known or 4)},
        "drafters": {"dflash": {"method": "dflash"}},
    }
    head = [
        "# specflow run full-pipeline --config THIS_FILE",
        "#",
        "# A key behind `#` shows its default; remove the `#` (of a section: from all its lines) to change it.",
        '# A prompts file has one JSON object a line: {"messages": [{"role": "user", "content": "..."}]}',
    ]
    if known is None:
        head.append("# The target's depth is not known here: check capture.layer_ids, or give --layers.")
    return "\n".join(head) + "\n" + "\n".join(_section(Config, values, 0)) + "\n"


def count_layers(target: str) -> int | None:
    """Decoder layers of a target whose files are here; none where they cannot be known."""
    count = target_facts(target).layers
    return count if count is not None and count > 1 else None


def spread_layers(layers: int) -> list[int]:
    """Up to three layers at even distances, none of them the last: 30 layers give 4, 14 and 24."""
    count = min(CAPTURED, layers - 1)
    return [(layers - 1) * (2 * i + 1) // (2 * count) for i in range(count)]


def _section(model: type[BaseModel], values: dict[str, Any], depth: int, *, off: bool = False) -> list[str]:
    """Lines of a section; ``off`` where the caller comments all of it out, so that no key in it needs a mark."""
    lines: list[str] = []
    pad = "  " * depth
    for name, field in model.model_fields.items():
        if depth == 0:
            lines.append("")
        lines += [f"{pad}# {line}" for line in textwrap.wrap(field.description or "", WIDTH - len(pad))]
        nested = models_in(field.annotation)
        given = values.get(name)
        mark = "" if off or given is not None else "#"
        if field.annotation in nested:
            inner = [f"{pad}{name}:", *_section(nested[0], given or {}, depth + 1, off=given is None)]
            lines += [f"{pad}{mark}{line[len(pad) :]}" for line in inner]
        elif isinstance(given, dict):
            lines.append(f"{pad}{name}:")
            for item, below in given.items():
                lines += [f"{pad}  {item}:", *_section(nested[0], below, depth + 2)]
        elif nested and isinstance(given, list):
            lines += [f"{pad}{name}:", *(f"{pad}  - {json.dumps(entry)}" for entry in given)]
        else:
            lines.append(f"{pad}{mark}{name}: {_value(_default(field) if given is None else given)}")
    return lines


def _default(field: FieldInfo) -> Any:
    value = field.get_default(call_default_factory=True)
    return type_name(field.annotation) if value is PydanticUndefined else value


def _value(value: Any) -> str:
    if isinstance(value, str | Path):
        return json.dumps(str(value)) if any(c in str(value) for c in ":#{}[],&*?|<>=!%@`\"'") else str(value)
    return json.dumps(list(value) if isinstance(value, tuple) else value, default=_of_section)


def _of_section(value: BaseModel) -> dict[str, Any]:
    """A section in the default of a mapping: only what is not its own default."""
    return value.model_dump(mode="json", exclude_defaults=True)
