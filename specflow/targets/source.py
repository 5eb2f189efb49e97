"""Where a target comes from: the forms of ``target.source``, and what can be seen before loading."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specflow.targets.base import TargetError
from specflow.targets.gguf import has_chat_template, resolve_package_file

Kind = Literal["directory", "gguf", "random", "hub"]
MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
FORMS = "a directory, a .gguf file, package:<module>/<file>.gguf, random:<seed>, or a hub id <owner>/<name>"


@dataclass(frozen=True, slots=True)
class Source:
    kind: Kind
    path: Path | None = None
    seed: int = 0
    hub_id: str = ""


def parse_source(text: str) -> Source:
    """The source ``text`` names; raises ``TargetError`` if it names none that exists here."""
    scheme, _, rest = text.partition(":")
    if scheme == "random" and rest:
        if not rest.isascii() or not rest.isdigit():
            raise TargetError(f"random:{rest}: the seed must be a whole number from 0 up")
        return Source("random", seed=int(rest))
    if scheme == "package" and rest:
        return Source("gguf", path=resolve_package_file(rest))
    path = Path(text).expanduser()
    if path.is_dir():
        return Source("directory", path=path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise TargetError(f"{text} is a file, but not a .gguf file; expected {FORMS}")
        return Source("gguf", path=path)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text) and not text.startswith(".") and path.suffix != ".gguf":
        return Source("hub", hub_id=text)
    raise TargetError(f"no such directory or file: {text}; expected {FORMS}")


def source_files(source: Source) -> Iterator[Path]:
    """The local files a source consists of."""
    if source.path is None:
        return
    if source.kind == "gguf":
        yield source.path
    else:
        for pattern in MODEL_FILES:
            yield from sorted(source.path.glob(pattern))


def problems(source: Source) -> Iterator[tuple[str, str]]:
    """``(found, expected)`` of what is wrong with a source, as far as its files tell without loading it."""
    if source.path is None:
        return
    if source.kind == "gguf":
        if not has_chat_template(source.path):
            yield f"{source.path} without a chat template", "an instruction-tuned model whose file has one"
        return
    config_path = source.path / "config.json"
    if not config_path.is_file():
        yield f"{source.path} without config.json", "a Hugging Face model directory"
        return
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
    except ValueError as problem:
        yield f"{config_path} is no JSON ({problem})", "a Hugging Face model configuration"
        return
    names = config.get("architectures") or []
    if config.get("is_encoder_decoder") or not any(str(name).endswith(("CausalLM", "LMHeadModel")) for name in names):
        yield f"architectures {names}", "a decoder-only language model (...ForCausalLM)"
    if not any(source.path.glob("*.safetensors")):
        yield f"{source.path} without *.safetensors", "weights as safetensors"
    if not (source.path / "tokenizer.json").is_file():
        yield f"{source.path} without tokenizer.json", "a fast tokenizer"
    if not _has_template(source.path):
        yield f"{source.path} without a chat template", "chat_template.jinja, or chat_template in tokenizer_config.json"


def _has_template(path: Path) -> bool:
    if (path / "chat_template.jinja").is_file() or (path / "chat_template.json").is_file():
        return True
    config = path / "tokenizer_config.json"
    return config.is_file() and '"chat_template"' in config.read_text(encoding="utf-8")
