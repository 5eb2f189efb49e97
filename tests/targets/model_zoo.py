"""Tiny random models of several families, as Hugging Face directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from specflow.targets.tiny import make_tiny_target

SMALL: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "eos_token_id": 298,
}
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "olmo2", "phi3")
WINDOW = 8


def config_of(family: str) -> Any:
    from transformers import AutoConfig

    extra: dict[str, Any] = {}
    if family in {"mistral", "gemma2", "gemma3_text", "phi3"}:
        extra["sliding_window"] = WINDOW
    if family == "gemma2":
        extra |= {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 12}
    if family == "gemma3_text":
        types = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
        extra |= {"layer_types": types, "query_pre_attn_scalar": 12}
    return AutoConfig.for_model(family, **(SMALL | extra))


def make_model(path: Path, family: str, *, seed: int = 0) -> Path:
    """A random model of ``family`` with the tiny target's tokenizer; every tensor is random, norms included."""
    from transformers import AutoModelForCausalLM

    make_tiny_target(path, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config_of(family))
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.data += 0.3 * torch.randn_like(parameter)
    model.save_pretrained(path)
    return path
