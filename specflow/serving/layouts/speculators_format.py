"""EAGLE-3 as the ``speculators`` format, which Hugging Face repositories hold and vLLM reads.

Made from the layout of ``layouts.eagle3``: the same tensors, other names of two things. The first layer is
``layers.0``, not ``midlayer``; and a captured layer is named by its *input*, so that the output of layer k is id k + 1.
``norm_before_residual`` is written because its default is the other one: here the residual is the state before its
norm. The format has no place for norms of single features, a normed state, or a second layer that another engine would
read alike, so such drafters are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.serving.layouts import eagle3
from specflow.serving.layouts.common import rope_keys, rope_of, write_layout

if TYPE_CHECKING:
    from torch import Tensor

VERSION = "0.3.0"
"""Of the format's description that this follows."""
FIRST_LAYER = ("midlayer.", "layers.0.")
LAYER_KEYS = (
    "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "hidden_act",
    "rms_norm_eps", "attention_bias", "mlp_bias", "max_position_embeddings", "vocab_size", "num_hidden_layers",
    "tie_word_embeddings",
)  # fmt: skip


def write(
    directory: Path,
    geometry: Mapping[str, Any],
    manifest: Mapping[str, Any],
    target: Mapping[str, Any],
    trained: Mapping[str, Tensor],
    *,
    dtype: str,
) -> None:
    """Write ``config.json`` and ``model.safetensors``; ``ValueError`` naming everything the format cannot say."""
    if manifest["method"] != "eagle3":
        raise ValueError(f"the speculators format is written for eagle3 only, found {manifest['method']!r}")
    wrong = [f"{key} {geometry[key]}" for key in ("fc_norm", "norm_output") if geometry[key]]
    wrong += [f"{key} {geometry[key]}" for key, fits in (("num_layers", 1),) if geometry[key] != fits]
    wrong += ["no head of its own"] if geometry["draft_vocab_size"] is None else []
    if wrong:
        raise ValueError(f"the speculators format has no place for: {', '.join(wrong)}")
    config = config_of(eagle3.layout_config(geometry, manifest, target, dtype=dtype), target)
    tensors = eagle3.export_tensors(trained, dtype=dtype)
    write_layout(directory, config, {_named(name): tensor for name, tensor in tensors.items()})


def config_of(config: Mapping[str, Any], target: Mapping[str, Any]) -> dict[str, Any]:
    """From the ``config.json`` of ``layouts.eagle3``, and the target's."""
    method, rope = config["eagle_config"], rope_of(config)
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": VERSION,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": method["num_speculative_steps"]},
            ],
            "verifier": {
                "name_or_path": str(target.get("_name_or_path") or ""),
                "architectures": list(target.get("architectures") or ()),
            },
        },
        "transformer_layer_config": {
            "model_type": "llama",
            **{key: config[key] for key in LAYER_KEYS},
            **rope_keys(rope),
        },
        "draft_vocab_size": config["draft_vocab_size"],
        "target_hidden_size": config["target_hidden_size"],
        "norm_before_residual": False,
        "norm_before_fc": False,
        "eagle_aux_hidden_state_layer_ids": [k + 1 for k in method["eagle_aux_hidden_state_layer_ids"]],
        "dtype": config["dtype"],
        "torch_dtype": config["torch_dtype"],
    }


def _named(name: str) -> str:
    ours, theirs = FIRST_LAYER
    return theirs + name.removeprefix(ours) if name.startswith(ours) else name
