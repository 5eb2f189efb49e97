"""DFlash 2 drafter -> the directory that SGLang 0.5.23 loads as ``DFlash2DraftModel``.

The layout is DFlash's (``layouts.dflash``) with the keys of convolution and selector, which the engine looks up in
``dflash_config`` alone. A drafter without a selector is a ``DFlashDraftModel``, which may have convolutions too. An
engine starts tensors it does not find with zeros or at random and says nothing: the lint insists on every one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specflow.serving import lint_rules
from specflow.serving.draft import Draft, Finding
from specflow.serving.layouts import dflash
from specflow.serving.layouts.dflash import as_read, drafter_tensors, export_tensors, launch_flags, read_back

__all__ = [
    "RULES", "as_read", "drafter_tensors", "export_tensors", "geometry_of", "launch_flags", "layout_config",
    "layout_shapes", "read_back",
]  # fmt: skip

ARCHITECTURE = "DFlash2DraftModel"
ARCHITECTURES = (ARCHITECTURE,)
DEFAULTS: Mapping[str, Any] = {
    "conv_kernel_size": 0,
    "conv_group_size": 0,
    "selector_rank": 0,
    "selector_top_k": 0,
    "output_multiplier": 1.0,
    "final_logit_softcapping": None,
}
"""What the engine takes for a key that is missing."""


def layout_config(
    geometry: Mapping[str, Any], manifest: Mapping[str, Any], target: Mapping[str, Any], *, dtype: str
) -> dict[str, Any]:
    config = dflash.layout_config(geometry, manifest, target, dtype=dtype)
    config["dflash_config"] |= {key: geometry[key] for key in DEFAULTS}
    config["architectures"] = [_architecture(geometry["selector_top_k"])]
    return config


def layout_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of DFlash's, of every convolution, and of the selector."""
    method, hidden = {**DEFAULTS, **config["dflash_config"]}, config["hidden_size"]
    taps, group, rank = (int(method[key]) for key in ("conv_kernel_size", "conv_group_size", "selector_rank"))
    shapes = dflash.layout_shapes(config)
    if taps and group:
        for i in range(config["num_hidden_layers"]):
            for name in ("attention_conv", "mlp_conv"):
                shapes[f"layers.{i}.{name}.base_kernel"] = (2, taps, hidden)
                shapes[f"layers.{i}.{name}.kernel_projection.weight"] = (2 * taps * (hidden // group), hidden)
    if method["selector_top_k"]:
        for name in ("predecessor_codebook", "successor_codebook"):
            shapes[f"candidate_selector.{name}"] = (config["vocab_size"], rank)
        shapes["candidate_selector.hidden_projection.weight"] = (rank, hidden)
    return shapes


def geometry_of(config: Mapping[str, Any]) -> dict[str, Any]:
    method = {**DEFAULTS, **config["dflash_config"]}
    return {
        **dflash.geometry_of(config),
        **{key: method[key] for key in DEFAULTS},
        "final_logit_softcapping": method["final_logit_softcapping"] or None,
    }


def _architecture(top_k: int) -> str:
    return ARCHITECTURE if top_k else dflash.ARCHITECTURE


def _constants(config: Mapping[str, Any]) -> dict[str, Any]:
    top_k = int(config["dflash_config"].get("selector_top_k") or 0)
    return {**dflash.constants(config), "architectures": [_architecture(top_k)]}


def _extras(draft: Draft) -> Iterator[Finding]:
    """The keys of convolution and selector are the drafter's own."""
    for key in DEFAULTS:
        found, expected = draft.config["dflash_config"].get(key), draft.geometry[key]
        if found != expected:
            yield Finding(check="extras", where=f"dflash_config.{key}", found=repr(found), expected=repr(expected))


def _codebooks(draft: Draft) -> Iterator[Finding]:
    """The engine reads codebooks by the target's token ids, and walks over a power of two of candidates."""
    top_k = int(draft.config["dflash_config"].get("selector_top_k") or 0)
    if top_k & (top_k - 1):
        where = "dflash_config.selector_top_k"
        yield Finding(check="codebooks", where=where, found=repr(top_k), expected="a power of two")
    for name in ("predecessor_codebook", "successor_codebook") if top_k else ():
        rows, needed = draft.tensors[f"candidate_selector.{name}"].shape[0], draft.target["vocab_size"]
        if rows != needed:
            yield Finding(
                check="codebooks",
                where=f"candidate_selector.{name}",
                found=f"{rows} rows",
                expected=f"{needed}, one per token of the target",
            )


def _convolution(draft: Draft) -> Iterator[Finding]:
    """The engine cuts the hidden size into whole groups."""
    method, hidden = draft.config["dflash_config"], int(draft.config["hidden_size"])
    taps, group = (int(method.get(key) or 0) for key in ("conv_kernel_size", "conv_group_size"))
    if bool(taps) != bool(group):
        where, expected = "dflash_config.conv_kernel_size", "taps and groups both, or neither"
        yield Finding(check="convolution", where=where, found=f"{taps} taps, groups of {group}", expected=expected)
    if group and hidden % group:
        where, expected = "dflash_config.conv_group_size", f"a number that divides {hidden}, the hidden size"
        yield Finding(check="convolution", where=where, found=repr(group), expected=expected)


RULES = {
    **dflash.RULES,
    "config-keys": lint_rules.config_keys(
        dflash.CONFIG_KEYS, dflash_config=(dflash.METHOD_KEYS | set(DEFAULTS), dflash.OPTIONAL_METHOD_KEYS)
    ),
    "constants": lint_rules.constants(_constants),
    "extras": _extras,
    "codebooks": _codebooks,
    "convolution": _convolution,
    "tensors": lint_rules.names(layout_shapes),
    "shapes": lint_rules.shapes(layout_shapes),
}
