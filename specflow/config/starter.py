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
        "# Lines that begin with `# ` and a key show defaults; remove the `# ` to change one.",
        '# A prompts file has one JSON object a line: {"messages": [{"role": "user", "content": "..."}]}',
    ]
    if known is None:
        head.append(
            f"# The target's depth is not known here: check capture.layer_ids (written for {CAPTURED + 1} layers)."
        )
    return "\n".join(head) + "\n" + "\n".join(_section(Config, values, 0)) + "\n"


def count_layers(target: str) -> int | None:
    """Decoder layers of a target: from ``config.json`` of a local directory; none where it cannot be known."""
    if target.startswith("random:"):
        return 4
    try:
        settings = json.loads((Path(target).expanduser() / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    nested = settings.get("text_config", settings) if isinstance(settings, dict) else {}
    count = nested.get("num_hidden_layers") if isinstance(nested, dict) else None
    return count if isinstance(count, int) and count > 1 else None


def spread_layers(layers: int) -> list[int]:
    """Up to three layers at even distances, none of them the last: 30 layers give 7, 15 and 22."""
    count = min(CAPTURED, layers - 1)
    return sorted({min(layers - 2, round(layers * (i + 1) / (count + 1))) for i in range(count)})


def _section(model: type[BaseModel], values: dict[str, Any], depth: int) -> list[str]:
    lines: list[str] = []
    for name, field in model.model_fields.items():
        if depth == 0:
            lines.append("")
        lines += _comment(field.description, depth)
        nested = models_in(field.annotation)
        given = values.get(name)
        pad = "  " * depth
        if field.annotation in nested:
            lines.append(f"{pad}{name}:" if given else f"{pad}# {name}:")
            inner = _section(nested[0], given or {}, depth + 1)
            lines += inner if given else [_commented(line, depth) for line in inner]
        elif isinstance(given, dict):
            lines.append(f"{pad}{name}:")
            for item, below in given.items():
                lines += [f"{pad}  {item}:", *_section(nested[0], below, depth + 2)]
        elif nested and isinstance(given, list):
            lines += [f"{pad}{name}:", *(f"{pad}  - {json.dumps(entry)}" for entry in given)]
        elif given is not None:
            lines.append(f"{pad}{name}: {_value(given)}")
        else:
            lines.append(f"{pad}# {name}: {_value(_default(field))}")
    return lines


def _comment(text: str | None, depth: int) -> list[str]:
    pad = "  " * depth
    return [f"{pad}## {line}" for line in textwrap.wrap(text or "", WIDTH - len(pad))]


def _commented(line: str, depth: int) -> str:
    """A line below a section that is itself commented out; its keys stay under the section's when both return."""
    pad = "  " * depth
    body = line[len(pad) :]
    return line if body.lstrip().startswith("##") else f"{pad}# {body.replace('# ', '', 1)}"


def _default(field: FieldInfo) -> Any:
    value = field.get_default(call_default_factory=True)
    return type_name(field.annotation) if value is PydanticUndefined else value


def _value(value: Any) -> str:
    if isinstance(value, str | Path):
        return json.dumps(str(value)) if any(c in str(value) for c in ":#{}[],&*?|<>=!%@`\"'") else str(value)
    return json.dumps(list(value) if isinstance(value, tuple) else value)
