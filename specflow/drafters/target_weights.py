"""Single tensors of a target's checkpoint, read by name: training needs the ends of the model, not the model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor


class TargetWeights:
    """A Hugging Face directory with one or more safetensors files. Tensors come in the dtype they are stored in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        config: dict[str, Any] = json.loads((path / "config.json").read_text())
        self.config: dict[str, Any] = config.get("text_config") or config
        self._files = self._find_files()

    def _find_files(self) -> dict[str, Path]:
        index = self.path / "model.safetensors.index.json"
        if index.exists():
            listed: dict[str, str] = json.loads(index.read_text())["weight_map"]
            return {name: self.path / file for name, file in listed.items()}
        single = self.path / "model.safetensors"
        if not single.exists():
            raise FileNotFoundError(f"expected model.safetensors or its index in {self.path}, found neither")
        with safe_open(single, framework="pt") as opened:
            return dict.fromkeys(opened.keys(), single)

    def has(self, name: str) -> bool:
        return name in self._files

    def get(self, name: str) -> Tensor:
        """The tensor; raises ``KeyError`` naming the checkpoint."""
        if name not in self._files:
            raise KeyError(f"{self.path} has no tensor {name!r}")
        with safe_open(self._files[name], framework="pt") as opened:
            found: Tensor = opened.get_tensor(name)
        return found

    def embedding(self) -> Tensor:
        """``[V, H]``."""
        return self.get(self._first("model.embed_tokens.weight", "model.language_model.embed_tokens.weight"))

    def head(self) -> Tensor:
        """``[V, H]``; the embedding where the two are tied."""
        return self.get("lm_head.weight") if self.has("lm_head.weight") else self.embedding()

    @property
    def embedding_scale(self) -> float:
        """Factor the target's embedding module puts on its rows."""
        if str(self.config.get("model_type", "")).startswith("gemma"):
            return math.sqrt(float(self.config["hidden_size"]))
        return float(self.config.get("embedding_multiplier") or 1.0)

    def _first(self, *names: str) -> str:
        return next((name for name in names if self.has(name)), names[0])
