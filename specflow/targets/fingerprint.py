"""What identifies a target: hashes of weights, configuration, tokenizer and chat template."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

CHUNK = 1 << 22
NAMES_OF_ORIGIN = ("_name_or_path", "_model_name_or_path", "transformers_version")
"""Configuration keys that say where a model came from, not what it computes."""


def fingerprint(path: Path) -> dict[str, str]:
    """``{weights,config,tokenizer,template}_sha256`` of a Hugging Face directory with one weights file."""
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    for name in NAMES_OF_ORIGIN:
        config.pop(name, None)
    template = path / "chat_template.jinja"
    return {
        "weights_sha256": _file_sha256(path / "model.safetensors"),
        "config_sha256": hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest(),
        "tokenizer_sha256": _file_sha256(path / "tokenizer.json"),
        "template_sha256": _file_sha256(template),
    }


def _file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
