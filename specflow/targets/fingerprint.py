"""What identifies a target: hashes of weights, configuration, tokenizer and chat template."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

CHUNK = 1 << 22
NAMES_OF_ORIGIN = ("_name_or_path", "_model_name_or_path", "transformers_version")
"""Configuration keys that say where a model came from, not what it computes."""
TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


def fingerprint(path: Path) -> dict[str, str]:
    """``{weights,config,tokenizer,template}_sha256`` of a Hugging Face directory with one weights file."""
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    for name in NAMES_OF_ORIGIN:
        config.pop(name, None)
    template = path / "chat_template.jinja"
    return {
        "weights_sha256": _file_sha256(path / "model.safetensors"),
        "config_sha256": hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest(),
        "tokenizer_sha256": _tokenizer_sha256(path),
        "template_sha256": _file_sha256(template),
    }


def _tokenizer_sha256(path: Path) -> str:
    """Over ``tokenizer.json`` and the settings beside it that change ids or special tokens."""
    digest = hashlib.sha256(_file_sha256(path / "tokenizer.json").encode())
    for name in TOKENIZER_SETTINGS:
        if (path / name).exists():
            values = json.loads((path / name).read_text(encoding="utf-8"))
            for origin in (*NAMES_OF_ORIGIN, "name_or_path"):
                if isinstance(values, dict):
                    values.pop(origin, None)
            digest.update(f"{name}:{json.dumps(values, sort_keys=True)}".encode())
    return digest.hexdigest()


def _file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
