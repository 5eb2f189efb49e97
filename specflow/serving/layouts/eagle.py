"""EAGLE drafter -> the directory that SGLang 0.5.23 loads as ``LlamaForCausalLMEagle``, whatever the target.

The engine puts ``model.`` before every name, so names are without a prefix; a tensor under another name is skipped with
a warning, and ``fc.bias`` would stay random. Embedding and head are the target's and not exported: the engine replaces
the first and never reads the second. There is no final norm and no input norm of the first layer. ``bias`` would give
every projection of the attention a bias, ``tie_word_embeddings`` would make the head the embedding.

Where not every token can be proposed, ``hot_vocab_size`` is the number of those that can and ``hot_tokens.pt`` the list
of their ids, which the server gets as ``--speculative-token-map``; the draft's logits are then over these rows of the
target's head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from specflow.serving import lint_rules
from specflow.serving.draft import TOKEN_MAP, Draft, Finding
from specflow.serving.layouts.common import backbone_keys, cast_tensors, sizes_of
from specflow.serving.layouts.state_drafters import layer_shapes, round_flags, steps

if TYPE_CHECKING:
    from torch import Tensor

ARCHITECTURE = "LlamaForCausalLMEagle"
ARCHITECTURES = (ARCHITECTURE,)
CONFIG_KEYS = frozenset(
    {
        "architectures", "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "intermediate_size", "hidden_act", "rms_norm_eps", "attention_bias",
        "mlp_bias", "bias", "rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "vocab_size",
        "hot_vocab_size", "tie_word_embeddings", "dtype", "torch_dtype", "num_target_layers", "num_speculative_steps",
    }
)  # fmt: skip
NOT_READ = ("embed_tokens.", "lm_head.")
"""Beginnings of names that public drafters have, and an engine replaces or skips."""


def layout_config(
    geometry: Mapping[str, Any], manifest: Mapping[str, Any], target: Mapping[str, Any], *, dtype: str
) -> dict[str, Any]:
    """``config.json`` of the draft.

    ``geometry``: the drafter's own config; ``target``: the target's Hugging Face config; ``dtype``: torch name.
    """
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        **backbone_keys(geometry, target, dtype=dtype),
        "mlp_bias": False,
        "bias": False,
        "hot_vocab_size": int(geometry["draft_vocab_size"] or geometry["vocab_size"]),
        "num_target_layers": int(target["num_hidden_layers"]),
        "num_speculative_steps": int(manifest["num_proposals"]),
    }


def layout_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Exact names and shapes of the checkpoint that ``config`` describes (linear weights ``[out, in]``)."""
    hidden = config["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, 2 * hidden), "fc.bias": (hidden,)}
    for index in range(config["num_hidden_layers"]):
        layer = layer_shapes(config, width=hidden)
        if index:
            layer["input_layernorm.weight"] = (hidden,)
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    if (size := _hot_tokens(config)) is not None:
        shapes[TOKEN_MAP] = (size,)
    return shapes


def _hot_tokens(config: Mapping[str, Any]) -> int | None:
    """How many tokens can be proposed; none: all."""
    size = int(config["hot_vocab_size"])
    return size if size != config["vocab_size"] else None


def geometry_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The drafter's own config as an engine understands ``config``: the inverse of ``layout_config``."""
    return {**sizes_of(config), "steps": config["num_speculative_steps"], "draft_vocab_size": _hot_tokens(config)}


def export_tensors(trained: Mapping[str, Tensor], *, dtype: str) -> dict[str, Tensor]:
    """The names are the network's own; of the tokens that can be proposed, their ids."""
    import torch

    weights = cast_tensors({name: t for name, t in trained.items() if name != "d2t"}, dtype=dtype)
    if (offsets := trained.get("d2t")) is not None:
        weights[TOKEN_MAP] = offsets + torch.arange(offsets.numel())
    return weights


def drafter_tensors(exported: Mapping[str, Tensor]) -> dict[str, Tensor]:
    import torch

    tensors = {name: t.float() for name, t in exported.items() if name != TOKEN_MAP}
    if (ids := exported.get(TOKEN_MAP)) is not None:
        tensors["d2t"] = ids - torch.arange(ids.numel())
    return tensors


def as_read(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Without the copies of the target's ends that public drafters have, nor of rotary tables."""
    found = {n: t for n, t in tensors.items() if not n.startswith(NOT_READ) and "rotary_emb" not in n}
    heads = int(config["num_attention_heads"])
    defaults = {
        "bias": False,
        "hot_vocab_size": config["vocab_size"],
        "num_key_value_heads": heads,
        "head_dim": int(config["hidden_size"]) // heads,
    }
    return {**defaults, **config}, found


def launch_flags(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The token map by its name in the draft's directory."""
    limited = (manifest.get("geometry") or {}).get("draft_vocab_size") is not None
    return {**round_flags(manifest, algorithm="EAGLE"), **({"--speculative-token-map": TOKEN_MAP} if limited else {})}


def read_back(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: config[key] for key in ("head_dim", "hot_vocab_size", "num_speculative_steps")}


def _constants(config: Mapping[str, Any]) -> dict[str, Any]:
    """What every export has, and an engine would not miss."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bias": False,
        "tie_word_embeddings": False,
    }


def _vocabulary(draft: Draft) -> Iterator[Finding]:
    """``hot_tokens.pt`` is there where it is needed, and lists different tokens of the target."""
    size, ids = _hot_tokens(draft.config), draft.tensors.get(TOKEN_MAP)
    if ids is not None:
        total = int(draft.config["vocab_size"])
        if ids.ndim != 1 or not bool((ids.diff() > 0).all()) or int(ids.min()) < 0 or int(ids.max()) >= total:
            expected = f"a list of increasing ids below {total}"
            yield Finding(check="vocabulary", where=TOKEN_MAP, found=f"shape {tuple(ids.shape)}", expected=expected)
    trained = draft.geometry["draft_vocab_size"]
    if size != trained:
        yield Finding(
            check="vocabulary", where="hot_vocab_size", found=repr(draft.config["hot_vocab_size"]),
            expected=f"{trained or draft.config['vocab_size']}, as trained",
        )  # fmt: skip


RULES = {
    "config-keys": lint_rules.config_keys(CONFIG_KEYS),
    "constants": lint_rules.constants(_constants),
    "sizes": lint_rules.sizes,
    "steps": steps("num_speculative_steps"),
    "vocabulary": _vocabulary,
    **lint_rules.of_every_method(layout_shapes, export_tensors),
}
