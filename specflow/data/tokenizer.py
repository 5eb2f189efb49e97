"""The target's tokenizer and end tokens, without its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def load_tokenizer(path: Path) -> tuple[Any, frozenset[int]]:
    """(tokenizer, end ids) of a Hugging Face directory.

    End ids are those of ``generation_config.json`` and the tokenizer's own, as the engine stops at.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    ends = {tokenizer.eos_token_id}
    config = path / "generation_config.json"
    if config.exists():
        eos = json.loads(config.read_text(encoding="utf-8")).get("eos_token_id")
        ends.update(eos if isinstance(eos, list) else [eos])
    return tokenizer, frozenset(int(i) for i in ends if i is not None)
